"""What stands before every server of this program: who is answered, what of them is read, and what leaves with an answer.

Plain ASGI around any application; no component, no database. Start at `hosts`.
"""
