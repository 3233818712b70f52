"""Turns a model's name into its files and tensors: embedded, folder, GGUF or hub.

Start at `catalog`.
"""
