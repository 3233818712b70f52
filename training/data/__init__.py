"""Builds the agent's training data from benchmarks."""
