"""The graph and its nodes: one function for each step of answering a question.

Start at `graph` (the order), then read `nodes`; `toolbox` holds what the nodes work with.
"""
