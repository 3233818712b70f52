"""From events to what is shown: Markdown, HTML, SVG and charts. Nothing here changes a session.

Start at `messages` and `passes`.
"""
