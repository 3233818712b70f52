"""Methods whose head drafts token by token or in one step of several places: draft model, Medusa, EAGLE-3, Falcon.

Start at `draft_model`.
"""
