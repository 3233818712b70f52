"""Makes questions and schemas that never repeat: other names, other words, wrong SQL, second questions.

Start at `variants`.
"""
