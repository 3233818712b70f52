"""Decoding methods, which draft tokens for the target to verify.

Start at `registry`, which lists them all and makes one by its name. `baselines` has `plain` and `prompt_lookup`.
"""
