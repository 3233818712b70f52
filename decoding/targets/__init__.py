"""Models that score drafts, and their memory.

Start at `fast_target`; `hf_target` is the plain reference.
"""
