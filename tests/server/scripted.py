"""A generation that says what a test wants it to say."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

from mainstem.engine.outputs import RequestOutput, RequestUsage
from mainstem.server.generation import Part, Usage


class ScriptedGeneration:
    """Stands for a `Generation` of one reply, which comes in pieces of a few characters.

    Args:
        text: of the reply.
        finish_reason: how it ends.
        stop_reason: the stop string that ended it.
    """

    num_choices = 1

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
