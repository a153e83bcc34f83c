"""Tests of mainstem.model."""
