"""Measures accuracy on Spider and BIRD and the speed of decoding, and reports both.

Start at `accuracy/run.py` or `speed/replay.py`; `datasets/registry.py` lists the data sets.
"""
