"""Judges by the rules of the official scripts whether a prediction is right.

Start at `referee`; `referee_pool` runs it in processes that can be killed.
"""
