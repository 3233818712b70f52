"""Methods whose head drafts token by token, or several tokens in one step: draft model, Medusa, EAGLE-3, Falcon.

Start at `draft_model`.
"""
