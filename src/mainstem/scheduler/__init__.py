"""scheduler layer."""
