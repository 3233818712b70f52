"""Composition root: the command line. `cli` names every command; each folder holds the commands of one purpose.

Start at `cli`; what commands have in common is in `shared`.
"""
