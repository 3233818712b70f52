"""A training run: progress, processes and optimizer."""
