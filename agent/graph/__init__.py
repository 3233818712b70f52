"""The graph and its nodes: what happens to a question, one function for each step.

Start at `graph` (the order), then `nodes`; `toolbox` holds what the nodes work with.
"""
