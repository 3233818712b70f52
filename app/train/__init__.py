"""The commands that build training data and train: `data`, `train` and its sub-commands.

Start at `train`; `train_all` runs every stage of one of the `recipes`. The training itself is in `decoding/training/`.
"""
