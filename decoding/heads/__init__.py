"""Draft heads: small networks that guess from the target's hidden states. `training.heads` trains them.

Start at `head` (configuration and files); `kinds` lists the kinds.
"""
