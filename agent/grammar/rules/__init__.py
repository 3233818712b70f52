"""The grammar as text, and what its parts do: notation, terminals, actions and conditions.

Start at `sql_rules`; `plan_rules` is the grammar of plans.
"""
