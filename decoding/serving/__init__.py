"""The decoder for texts instead of tokens: loading, stop strings, streaming, batches of several callers.

Start at `text_decoder`; `load` makes a decoder from a model's name.
"""
