"""Whether a question leans on the ones before it, and what it means then. Rules over words and the schema; no model.

Start at `follow_up`.
"""
