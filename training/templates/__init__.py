"""Questions from templates over a schema."""
