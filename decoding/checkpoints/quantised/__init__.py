"""Quantised checkpoints as they are published: FP8, AWQ, GPTQ and compressed-tensors, dequantised while they are read.

Start at `read`; `scheme` says what a configuration promises, and `layouts` how its numbers lie.
"""
