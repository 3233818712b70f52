"""Questions with gold SQL, and the training data made from them.

Start at `registry`.
"""
