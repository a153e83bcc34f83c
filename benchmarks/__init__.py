"""Benchmarks: each prints a table and keeps its figures as JSON with the command that made them."""
