"""Repairs of valid SQL that uses another column than the question means, where types and keys show it.

Each rule returns the statement as it is meant, or None.
"""
