"""Training texts: groups of pairs that share a prefix, packed into token forests.

Start at `groups`.
"""
