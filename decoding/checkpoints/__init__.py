"""From a model's name to its files and tensors: embedded, folder, GGUF, hub.

Start at `resolve`.
"""
