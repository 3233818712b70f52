"""Finds which tables, columns and values a question names.

Start at `link_schema`.
"""
