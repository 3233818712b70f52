"""Heads on torch's operators, for targets there and for GPUs. What each kind does with its module has a module of its own.

Start at `block`; `vocabulary` has the tokens that may be drafted.
"""
