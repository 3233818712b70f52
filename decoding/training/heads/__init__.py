"""Training of draft heads on a frozen target: its own answers, its hidden states on disk, one objective per kind of head.

Start at `run`; `objective` is what every kind offers.
"""
