"""The web chat; reads event records and computes no metric."""
