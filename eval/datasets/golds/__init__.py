"""Gold SQL from the training parts of Spider, Spider-Syn and BIRD is read, rewritten in one style and verified here.

Start at `sources`.
"""
