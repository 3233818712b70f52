"""The round: propose, score, verify, commit. It knows neither a particular model nor a particular method.

Start at `loop`; `draft`, `verify`, `target`, `method` and `constraint` define its terms.
"""
