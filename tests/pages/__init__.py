"""Tests of mainstem.pages."""
