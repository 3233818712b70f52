"""Decoding methods, one file each; the table of them is `decoding.method.METHODS`."""
