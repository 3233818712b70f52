"""Training on prompt and answer texts: data, packing, the differentiable forward, the loop. Knows no SQL and no agent.

Start at `loop`; `objective` says what is minimised.
"""
