"""Questions with gold SQL, and the training data made of them.

Start at `registry`.
"""
