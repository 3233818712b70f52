"""Training texts: groups of pairs behind one prefix, packed into token forests.

Start at `groups`.
"""
