"""What sharing saved, in tokens and bytes, from an engine's counts. It knows nothing of how it was done."""

from __future__ import annotations

from typing import NamedTuple

from mainstem.engine.outputs import EngineStats


class SharingReport(NamedTuple):
    """What an engine computed and stored, beside what it would have without sharing. Printing it gives three lines.

    Attributes:
        computed_tokens: prompt tokens put through the model.
        uncached_tokens: those that an engine without a prefix cache would have: every request's whole prompt.
        generated_tokens: tokens of replies; the same either way.
        peak_kv_tokens: most KV in use at once, in tokens.
        unshared_kv_tokens: most that running requests and held prefixes would have used, each stored by itself.
        kv_bytes_per_token: keys and values of one token in all layers.
    """

    computed_tokens: int
    uncached_tokens: int
    generated_tokens: int
    peak_kv_tokens: int
    unshared_kv_tokens: int
    kv_bytes_per_token: int

    @classmethod
    def of(cls, stats: EngineStats, kv_bytes_per_token: int) -> SharingReport:
        """The report of an engine, from its start to these counts."""
        return cls(
            computed_tokens=stats.prefilled_tokens,
            uncached_tokens=stats.prompt_tokens - stats.context_tokens,
            generated_tokens=stats.generated_tokens,
            peak_kv_tokens=stats.peak_kv_tokens,
            unshared_kv_tokens=stats.peak_unshared_tokens,
            kv_bytes_per_token=kv_bytes_per_token,
        )

    def __str__(self) -> str:
        uncached = f"{self.uncached_tokens:,}{_times(self.uncached_tokens, self.computed_tokens)}"
        unshared = f"{self._size(self.unshared_kv_tokens)}{_times(self.unshared_kv_tokens, self.peak_kv_tokens)}"
        return "\n".join(
            (
                f"prompt tokens computed {self.computed_tokens:>12,}  without a cache {uncached}",
                f"tokens generated       {self.generated_tokens:>12,}",
                f"KV memory at its peak  {self._size(self.peak_kv_tokens):>12}  without sharing {unshared}",
            )
        )

    def _size(self, tokens: int) -> str:
        return f"{tokens * self.kv_bytes_per_token / 2**20:,.1f} MiB"


def _times(more: int, less: int) -> str:
    return f", {more / less:.1f} times as much" if less else ""
