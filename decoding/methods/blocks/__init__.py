"""Methods whose head fills a whole block of tokens in one pass.

Start at `block_method`.
"""
