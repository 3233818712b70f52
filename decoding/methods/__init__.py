"""Decoding methods: where drafts come from.

Start at `registry`: its table `METHODS` names them all. `plain`, `prompt_lookup` and `cascade` need no family of their own.
"""
