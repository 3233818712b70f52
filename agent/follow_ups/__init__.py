"""Decides by rules, without a model, whether a question refers to earlier ones and, if so, what it means.

Start at `follow_up`.
"""
