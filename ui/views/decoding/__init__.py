"""How a step was decoded, as HTML: passes by position, their trees, races.

Start at `decoding_html`.
"""
