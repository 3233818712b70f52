"""Databases behind a URL, through SQLAlchemy.

Start at `sqlalchemy_database`.
"""
