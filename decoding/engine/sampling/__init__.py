"""The target's choice of a token, as a pure function of logits, seed and position.

Start at `sampler`; `numpy_choice` and `cuda_choice` compute the same choice faster.
"""
