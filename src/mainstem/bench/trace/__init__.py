"""Hash traces: what a cache of a given size makes of the prompts that others' users sent.

Such a trace has no text and no tokens, only an identity for each block of each prompt, so it drives a cache alone.
Needs no torch.
"""

from mainstem.bench.trace.blocks import BlockRequest, BlockTrace
from mainstem.bench.trace.curves import ARMS, Curve, Hits, TraceResult, choose_capacities, measure, policies
from mainstem.bench.trace.readers import read_traces
from mainstem.bench.trace.sessions import EndBit

__all__ = [
    "ARMS",
    "BlockRequest",
    "BlockTrace",
    "Curve",
    "EndBit",
    "Hits",
    "TraceResult",
    "choose_capacities",
    "measure",
    "policies",
    "read_traces",
]
