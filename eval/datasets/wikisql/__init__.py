"""WikiSQL's training questions (Zhong et al. 2017) on invented schemas.

Start at `parts` (items) -> `source` (the file) -> `canonical` (its SQL, cleaned) -> `schemas` (tables, names and keys) ->
`rows` (a database on which every question has an answer).
"""
