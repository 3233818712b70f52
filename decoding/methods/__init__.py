"""Decoding methods, which draft tokens for the target to verify.

Start at `table`, which lists them all; `registry` makes one by its name. `plain` and `prompt_lookup` belong to no
family.
"""
