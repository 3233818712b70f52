"""Training for Jacobi decoding: trajectories of a model's own greedy text, and Consistency LLMs and Jacobi Forcing on them."""
