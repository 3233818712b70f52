"""What all engines share: fetching rows, sampling columns, errors as data.

Start at `fetch_rows`.
"""
