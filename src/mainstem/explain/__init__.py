"""Why the tokens of a prompt were computed: a bounded record of each request, with one cause for every uncached token.

It knows token sequences, what a cache does with them, and requests. It knows neither tensors nor HTTP.
"""

from mainstem.explain.causes import MissCause
from mainstem.explain.recorder import Recorder
from mainstem.explain.records import Comparison, Miss, Origin, Record, tokens_by_cause

__all__ = ["Comparison", "Miss", "MissCause", "Origin", "Record", "Recorder", "tokens_by_cause"]
