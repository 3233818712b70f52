"""Training questions that no person asked on a training database: other tables' questions, and questions made from templates.

Start at `wikisql.parts` (WikiSQL's questions on invented schemas).
"""
