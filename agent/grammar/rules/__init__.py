"""The grammar as text, and the meaning of its parts: notation, terminals, actions and conditions.

Start at `sql_rules`; `plan_rules` is the grammar of plans.
"""
