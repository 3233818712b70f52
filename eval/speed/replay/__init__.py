"""What the agent asked, decoded again by every method; the search for the fastest options.

Start at `methods`.
"""
