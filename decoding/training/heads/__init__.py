"""Trains draft heads on the answers and hidden states of a frozen target, with one objective per kind of head.

Mask adapters, by which the target itself predicts ahead, are trained on the same answers (`mask_lesson`). Start at `run`;
`objective` is the interface of every kind.
"""
