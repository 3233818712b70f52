"""The web chat: a session for each person, views that turn events into HTML, and the page that shows them.

Start at `page.serve`, then `session.session`.
"""
