"""Decodes the agent's calls again with every method, and searches for the fastest options.

Start at `methods`.
"""
