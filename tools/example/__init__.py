"""The bundled example database "Needle & Groove", an invented chain of record shops.

Start at `build`.
"""
