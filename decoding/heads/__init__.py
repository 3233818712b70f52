"""Draft heads: small networks that guess from the target's hidden states. `decoding.training.heads` teaches them."""
