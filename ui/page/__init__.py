"""The page: its components, the wiring of their events to a session, and the server.

Start at `serve` and `page`.
"""
