"""Databases behind a URL, reached through SQLAlchemy.

Start at `sqlalchemy_database`.
"""
