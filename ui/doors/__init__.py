"""The checks that every server makes before a request reaches it: who may ask, what is read, which headers an answer has.

Plain ASGI around any application; no component, no database. Start at `hosts`.
"""
