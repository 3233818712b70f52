"""What targets remember between forwards: keys, values and hidden states of open sequences, and prefixes of closed ones.

Start at `cached_target`.
"""
