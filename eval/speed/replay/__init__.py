"""Decodes what the agent asked again by every method, and searches for the fastest options.

Start at `methods`.
"""
