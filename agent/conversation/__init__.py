"""A conversation from outside: questions in, events and answers out, kept in an archive.

Start at `conversation`; `archive` keeps events, `race` decodes a step again by other methods.
"""
