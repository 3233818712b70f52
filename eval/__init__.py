"""Spider and BIRD, the decoding benchmark, and their reports.

Start at `accuracy/run.py` or `speed/replay/methods.py`; `datasets/registry.py` lists the data sets.
"""
