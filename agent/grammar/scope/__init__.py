"""What is known while SQL is written: names in scope, facts about the schema, functions that may be called.

Start at `scope`.
"""
