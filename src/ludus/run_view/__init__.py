"""A run folder as documents for who looks at it: the dashboard and the report show the same ones."""
