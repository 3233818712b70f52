"""Decides by rules, without a model, whether a question leans on earlier ones, and what it means then.

Start at `follow_up`.
"""
