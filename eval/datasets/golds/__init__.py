"""Gold SQL from the training parts of Spider, Spider-Syn and BIRD: it is read, brought into one style and verified.

Start at `sources`.
"""
