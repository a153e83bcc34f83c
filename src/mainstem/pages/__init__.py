"""The slots of the KV pool: which are free, and in what runs.

Knows numbers only; who uses a slot, and what it holds, is for the layers above.
"""

from mainstem.pages.extents import ExtentAllocator, Run, SlotArray, ascending, runs_of

__all__ = ["ExtentAllocator", "Run", "SlotArray", "ascending", "runs_of"]
