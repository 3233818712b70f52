"""Decoding methods, which draft tokens for the target to verify.

Start at `table`, which lists them all; `registry` makes one by its name. `plain`, `prompt_lookup` and `cascade`
belong to no family.
"""
