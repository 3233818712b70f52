"""Training on prompts and answers: data, packing, the differentiable forward, the loop. It knows no SQL and no agent.

Start at `loop`; `objective` says what is minimised.
"""
