"""Questions made from templates on the training databases, for what a model gets wrong: which tables are needed, sets and
nesting, superlatives, flags and conditions, empty columns. English and SQL are made side by side from the schema and its
rows; a question is kept if its SQL runs in both engines and says something: rows, but not all of them.

Start at `templated` (items) -> `tables`, `sets`, `superlatives`, `conditions`, `blanks` (templates) -> `labels` (words).
"""
