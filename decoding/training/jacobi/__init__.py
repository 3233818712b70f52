"""Training for Jacobi decoding: Consistency LLMs and Jacobi Forcing on trajectories of a model's own greedy text.

Start at `objective`; `trajectory` and `collect` make the trajectories, `guesses` makes noise during training.
"""
