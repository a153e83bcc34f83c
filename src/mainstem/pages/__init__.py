"""The slots of the KV pool: which are free, and in what runs.

Knows numbers only; who uses a slot, and what it holds, is for the layers above.
"""

from mainstem.pages.extents import ExtentAllocator, Run, SlotArray, disjoint_runs, merge_runs, runs_of, slots_of
from mainstem.pages.table import PageTable

__all__ = ["ExtentAllocator", "PageTable", "Run", "SlotArray", "disjoint_runs", "merge_runs", "runs_of", "slots_of"]
