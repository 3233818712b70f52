"""The bundled example database "Needle & Groove", an invented chain of record shops, built by code from a fixed seed.

Start at `build`.
"""
