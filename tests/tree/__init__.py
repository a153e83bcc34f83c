"""Tests of mainstem.tree."""
