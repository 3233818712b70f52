"""The in-process decoder: many tokens per forward, the text of plain decoding."""
