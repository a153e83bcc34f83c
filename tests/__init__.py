"""Tests, one folder a layer."""
