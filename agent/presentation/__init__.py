"""Makes of a query's result what people are shown."""
