"""Names while SQL is being written: what a query sees, which facts about the schema bind it, which functions it may call.

Start at `scope`.
"""
