"""Gold SQL from the training parts of Spider, Spider-Syn and BIRD: read, brought into one style, verified.

Start at `sources`.
"""
