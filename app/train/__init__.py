"""Commands that build training data and train: `data`, `train` and its sub-commands. The training itself is in
`decoding/training/`.

Start at `train`; `train_all` runs every stage.
"""
