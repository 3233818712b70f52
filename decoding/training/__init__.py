"""Training on prompts and answers: data, packing, the differentiable forward, the loop. It knows neither SQL nor the agent.

Start at `loop`; `objective` defines what is minimised.
"""
