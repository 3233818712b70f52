"""What each kind of head learns, one objective per file.

Start at `blocks` or `eagle3`; the table is `decoding.heads.kinds.KINDS`.
"""
