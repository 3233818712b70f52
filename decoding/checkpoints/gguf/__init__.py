"""GGUF files become checkpoints in hub layout.

Start at `convert`.
"""
