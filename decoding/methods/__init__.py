"""Decoding methods, which draft tokens for the target to verify.

Start at `registry`: its table `METHODS` lists them all. `plain`, `prompt_lookup` and `cascade` belong to no family.
"""
