"""Measures how fast decoding is: methods, peers, costs, GPU kernels.

Start at `agent_calls` (what the agent asked the decoder) and `replay`.
"""
