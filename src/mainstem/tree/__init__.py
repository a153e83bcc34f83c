"""tree layer."""
