"""What methods share: tree builders, n-grams, the tokens that may be drafted, committed hidden states, heads.

Start at `trees`; `expected_tree`, `pooled` and `planned` are what guesses of several sources become.
"""
