"""Training of a mask adapter, which lets a frozen target predict several tokens ahead. Start at `lesson`."""
