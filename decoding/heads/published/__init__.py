"""Heads as others publish them, read into ours: one file per family of layouts, `layout` for what they share."""
