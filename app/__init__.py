"""The command line: it puts the other packages together. Each folder holds the commands of one purpose.

Start at `cli`, which names every command; `shared` holds what commands have in common.
"""
