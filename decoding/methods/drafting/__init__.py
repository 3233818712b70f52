"""What methods share: tree builders, n-grams, the tokens that may be drafted, committed hidden states.

Start at `trees`.
"""
