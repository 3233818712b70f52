"""WikiSQL's questions on invented databases."""
