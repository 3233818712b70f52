"""Trains draft heads on the answers and hidden states of a frozen target, with one objective per kind of head.

Start at `run`; `objective` is the interface of every kind.
"""
