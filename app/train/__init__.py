"""The commands that build training data and train: `data`, `train` and its sub-commands.

Start at `train`; `train_all` runs every stage of a recipe. The training itself is in `training/`.
"""
