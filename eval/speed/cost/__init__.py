"""What a forward costs, and the lower bound that the hardware sets.

Start at `forward_cost`.
"""
