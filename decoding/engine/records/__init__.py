"""What a round leaves behind, the figures that follow from it, and what rows cost.

Start at `rounds`.
"""
