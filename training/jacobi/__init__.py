"""Jacobi trajectories, and the training of Consistency LLMs and Jacobi Forcing."""
