"""The commands for one person at a terminal: `ask`, `chat`, `sql`, `logs`, `learn`.

Start at `ask`.
"""
