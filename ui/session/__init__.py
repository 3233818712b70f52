"""What the chat holds, without a component: the workspace that everybody shares, and one session for each person.

Start at `session`.
"""
