"""The round: propose, score, verify, commit. Knows neither a particular model nor a particular method.

Start at `loop`; `draft`, `verify`, `target`, `method` and `constraint` are its words.
"""
