"""tokens layer."""
