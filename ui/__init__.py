"""The web chat: components, and a thin controller that turns events into what is on the page.

Start at `launch` and `session`.
"""
