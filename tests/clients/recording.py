"""An engine that remembers what it was asked and what it said, and what that says about the cache.

It can be told what to say: for clients that cannot ask for a call, a grammar makes of the small model a capable one.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from mainstem.engine import AsyncEngine
from mainstem.engine.outputs import RequestOutput
from mainstem.explain import Origin
from mainstem.params import SamplingParams
from mainstem.tree import NO_HINTS, CacheHints, Namespace, TokenArray


@dataclass
class Exchange:
    """One request and its reply."""

    prompt: TokenArray
    reply: list[int] = field(default_factory=list)
    cached: int = 0

    @property
    def tokens(self) -> list[int]:
        """Prompt and reply."""
        return [*self.prompt.tolist(), *self.reply]


class RecordingEngine(AsyncEngine):
    """Remembers every exchange, in the order of arrival."""

    exchanges: list[Exchange]
    lines: list[str]
    """What it is to say next, reply by reply; when they are used up it says what it likes."""

    async def generate(
        self,
        prompt: TokenArray,
        params: SamplingParams,
        *,
        namespace: Namespace = (),
        origin: Origin | None = None,
        hints: CacheHints = NO_HINTS,
        prewarm: bool = False,
    ) -> AsyncGenerator[RequestOutput, None]:
        exchange = Exchange(np.array(prompt))
        self.exchanges.append(exchange)
        if self.lines:
            params = replace(params, grammar=f"start: {json.dumps(self.lines.pop(0))}\n")
        asked = super().generate(prompt, params, namespace=namespace, origin=origin, hints=hints, prewarm=prewarm)
        async for output in asked:
            exchange.reply += output.token_ids
            exchange.cached = output.usage.cached_tokens
            yield output


class Reuse(NamedTuple):
    """What a request found of the exchange before it.

    Attributes:
        cached: prompt tokens that were not computed.
        wanted: tokens of the exchange before, short of the last, which was never computed.
        kept: how many of that exchange's tokens this prompt begins with.
        replaced: text that the exchange before has from there on, and this prompt has not in these tokens.
        instead: what this prompt has there.
    """

    cached: int
    wanted: int
    kept: int
    replaced: str
    instead: str


def reuse(engine: AsyncEngine, before: Exchange, now: Exchange) -> Reuse:
    """Compare two exchanges that follow one another."""
    earlier, later = before.tokens, now.prompt.tolist()
    kept = next((i for i, (a, b) in enumerate(zip(earlier, later, strict=False)) if a != b), len(earlier))
    decode: Any = engine.tokenizer.decode
    return Reuse(
        now.cached,
        len(earlier) - 1,
        kept,
        decode(earlier[kept:], skip_special_tokens=False),
        decode(later[kept:], skip_special_tokens=False),
    )
