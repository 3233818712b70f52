"""The models that score drafts, with their KV caches.

Start at `fast_target`; `hf_target` is the plain reference.
"""
