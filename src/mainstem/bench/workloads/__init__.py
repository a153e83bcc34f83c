"""Makers of workloads: each module makes one kind."""
