"""The command line, which connects the other packages. Each folder holds the commands for one purpose.

Start at `cli`, which lists every command; `shared` holds what commands have in common.
"""
