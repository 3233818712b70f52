"""Fetches files: downloads that resume, the hub, the package index, and the folder that keeps them.

Start at `download`.
"""
