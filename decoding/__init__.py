"""The in-process decoder: it commits many tokens per forward and writes the text of plain decoding.

Start at `engine/loop.py` (the round) and `engine/method.py` (what a method is); `methods/registry.py` lists the
methods.
"""
