"""What a round leaves behind, and the figures that follow from it.

Start at `rounds`.
"""
