"""Questions made from templates on the training databases, for what a model gets wrong: which tables are needed, sets and
nesting, superlatives, flags and conditions, empty columns, and what people ask of business data, amounts and times. English
and SQL are made side by side from the schema and its rows.

Start at `tables`, `sets`, `superlatives`, `conditions`, `blanks`, `amounts` (with `comparisons`), `times` -> `labels` (words).
`eval.datasets.training.templated` runs the SQL and makes items: a question is kept if its result says something.
"""
