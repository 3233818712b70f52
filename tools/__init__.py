"""Databases without a language model: open, introspect, guard, execute, match values, rewrite dialects."""
