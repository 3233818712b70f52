"""Fetches files: downloads that resume, the hub, the package index, the embedded model, and the folder that keeps them.

Start at `download`.
"""
