"""The target's choice of a token, as a pure function of logits, seed and position.

Start at `sampler`; `numpy_choice` makes the choice, and `tensor_choice` makes the same one from tensors.
"""
