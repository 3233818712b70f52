"""Spider and BIRD, the decoding benchmark, and their reports."""
