"""Whether a prediction is right, by the rules of the official scripts.

Start at `referee`; `referee_pool` runs it in processes that can be killed.
"""
