"""Changes the SQL of an earlier question into that of a later one, if one change is certain.

Start at `adapt_query`.
"""
