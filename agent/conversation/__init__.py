"""Conversations as callers see them: questions go in, events and answers come out, and an archive keeps them.

Start at `conversation`. `archive` stores events, and `race` decodes a step again with other methods.
"""
