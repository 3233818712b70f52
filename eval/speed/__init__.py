"""Measures how fast decoding is: methods, peers, costs, GPU kernels.

Start at `agent_calls` (the calls that the agent made to the decoder) and `replay`.
"""
