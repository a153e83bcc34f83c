"""pages layer."""
