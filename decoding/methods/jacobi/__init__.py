"""Methods that guess several tokens at once with the target itself: Jacobi iterations, lookahead, mask tokens.

Start at `jacobi`; `window` is the rule that they share.
"""
