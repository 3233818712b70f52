"""Converts GGUF files into checkpoints in hub layout.

Start at `convert`.
"""
