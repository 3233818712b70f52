"""Rules about what a column is compared with: the right column, one value each, dates with dates, one unit.

Each module has one function that `repair_query` calls.
"""
