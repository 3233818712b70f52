"""The target's choice as a pure function of logits, seed and position.

Start at `sampler`; `numpy_choice` and `cuda_choice` compute the same faster.
"""
