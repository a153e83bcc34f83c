"""Workloads of agents, the arms that run them, and what is reported of each run.

It knows the engine, the scheduler and the caches from above; nothing below knows that it is being measured.
"""
