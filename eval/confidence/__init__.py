"""How sure answers are: what the model is fitted on that judges them, and what its figures are worth.

Confidences come from features of an answer (`fit_confidence`), and the choice among several readings from the model's own
hidden states (`candidates`, `fit_verifier`).
"""
