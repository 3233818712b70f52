"""Changes the SQL of an earlier question into that of a later one, where one change is sure.

Start at `adapt_query`.
"""
