"""The model that is trained: the base model, its differentiable forward, the loss.

Start at `base`.
"""
