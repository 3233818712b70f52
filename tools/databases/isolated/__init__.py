"""Runs queries in processes of their own, which can be killed.

Start at `isolated_database`.
"""
