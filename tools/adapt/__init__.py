"""The SQL of an earlier question changed into that of a later one, where one change is sure.

Start at `adapt_query`.
"""
