"""What a forward costs, and what no implementation can beat.

Start at `forward_cost`.
"""
