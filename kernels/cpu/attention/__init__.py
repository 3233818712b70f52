"""Attention of draft trees over cached keys and values, in eight bits or fp32. Start at `int8_attention`."""
