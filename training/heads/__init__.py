"""How draft heads and mask adapters learn from a frozen target."""
