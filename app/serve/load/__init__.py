"""`sqlagent load`: many clients at once on an OpenAI-compatible endpoint.

Start at `load`; `clients` ask, and `report` has the figures.
"""
