"""Tests of mainstem.tokens."""
