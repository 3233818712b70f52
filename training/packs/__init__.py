"""The format of training data, and how many pairs go through one forward."""
