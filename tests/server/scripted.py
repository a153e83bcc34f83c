"""A generation, and an engine, that say what a test wants them to say."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, ClassVar

from mainstem.engine import AsyncEngine, RequestOutput, RequestUsage
from mainstem.explain import Origin
from mainstem.params import SamplingParams
from mainstem.server.generation import Part, Usage
from mainstem.tree import Namespace, TokenArray


class ScriptedGeneration:
    """Stands for a `Generation` of one reply, which comes in pieces of a few characters.

    Args:
        text: of the reply.
        finish_reason: how it ends.
        stop_reason: the stop string that ended it.
    """

    num_choices = 1
    origin = Origin(id="scripted")
    diagnoses: ClassVar[list[Any]] = []

    def __init__(self, text: str, *, finish_reason: Any = "stop", stop_reason: str | None = None) -> None:
        self._pieces = re.findall(r"(?s).{1,4}", text) or [""]
        self._finish_reason = finish_reason
        self._stop_reason = stop_reason

    async def __aiter__(self) -> AsyncIterator[Part]:
        for i, piece in enumerate(self._pieces):
            last = i == len(self._pieces) - 1
            usage = RequestUsage(10, 4, 6, i + 1, 0.0, 0.0)
            reason = self._finish_reason if last else None
            output = RequestOutput(0, piece, (i,), (), reason, self._stop_reason if last else None, usage, 0.0)
            yield Part(0, output, i == 0)

    def usage(self) -> Usage:
        return Usage(10, 4, len(self._pieces))


class ScriptedEngine(AsyncEngine):
    """A real engine, except that it says what a test wrote, one token after the other.

    Attributes:
        script: from the text of a prompt to its reply.
    """

    script: Callable[[str], str]

    async def generate(
        self,
        prompt: TokenArray,
        params: SamplingParams,
        *,
        namespace: Namespace = (),  # noqa: ARG002 - nothing is cached here
        origin: Origin | None = None,  # noqa: ARG002
    ) -> AsyncGenerator[RequestOutput, None]:
        text = self.script(self.tokenizer.decode(prompt, skip_special_tokens=False))
        ids = self.tokenizer.encode(text).tolist()[: params.max_tokens]
        stream = self.tokenizer.stream(continuation=True, spoken=params.spoken_token_ids)
        for i, token_id in enumerate(ids):
            last = i == len(ids) - 1
            piece = stream.push(token_id) + (stream.flush() if last else "")
            usage = RequestUsage(len(prompt), 0, len(prompt), i + 1, 0.0, 0.0)
            yield RequestOutput(0, piece, (token_id,), (), "stop" if last else None, None, usage, time.perf_counter())
