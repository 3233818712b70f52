"""The model in training: its base, its differentiable forward, its loss.

Start at `base`.
"""
