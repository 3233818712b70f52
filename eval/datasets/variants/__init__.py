"""Makes questions and schemas that never repeat, with other names, other words, wrong SQL and second questions.

Start at `variants`.
"""
