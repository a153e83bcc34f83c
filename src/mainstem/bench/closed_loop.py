"""Sends the calls of a workload to a server, each as soon as the reply that it waits for is complete.

That is how agents ask: a closed loop, with as many requests at once as there are sessions and branches. It knows
workloads and a client, and nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mainstem.bench.http import Completion, CompletionsClient, Prompt
from mainstem.bench.workload import Workload
from mainstem.errors import MainstemError

_GOLDEN_SECTION = (5**0.5 - 1) / 2


def with_other_tokens(workload: Workload, repeat: int) -> Workload:
    """The same workload in other tokens: as much of it is shared, and a server that ran the first knows none of this.

    Every token id is moved by as many places, around in a circle from the lowest that occurs to the end of the
    vocabulary.

    Args:
        workload: any.
        repeat: 0 changes nothing, and every number gives other tokens.
    """
    lowest = min(int(call.appended.min(initial=workload.vocab_size)) for call in workload.calls)
    circle = workload.vocab_size - lowest
    # Whatever the circle, this goes round it almost evenly for the first thousands of repeats.
    move = round(repeat * _GOLDEN_SECTION * circle) % max(circle, 1)
    calls = tuple(
        replace(call, appended=((call.appended - lowest + move) % circle + lowest).astype(np.int32))
        for call in workload.calls
    )
    return replace(workload, calls=calls)


async def run_closed_loop(
    client: CompletionsClient, workload: Workload, on_end: Callable[[int], object]
) -> list[Completion]:
    """Run all calls.

    Args:
        client: asks no more at once than its connections.
        workload: `Call.reply` is ignored: the server makes its own replies, and calls extend those.
        on_end: told the index of each call that has ended.

    Returns:
        The replies, in the order of the calls.

    Raises:
        MainstemError: when a call fails; the others are given up then.
    """
    loop = _ClosedLoop(client, workload, on_end)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(loop.run(index)) for index in range(len(workload.calls))]
    except* MainstemError as failed:
        raise _first(failed) from None
    return [task.result() for task in tasks]


class _ClosedLoop:
    """The state of one run."""

    def __init__(self, client: CompletionsClient, workload: Workload, on_end: Callable[[int], object]) -> None:
        self._client = client
        self._calls = workload.calls
        self._lengths = workload.prompt_lengths
        self._on_end = on_end
        self._replies: list[asyncio.Future[tuple[Prompt, Completion]]] = [
            asyncio.get_running_loop().create_future() for _ in workload.calls
        ]

    async def run(self, index: int) -> Completion:
        call = self._calls[index]
        appended = call.appended.tolist()
        prompt = self._client.prompt(appended)
        if call.after is not None:
            before, reply = await asyncio.shield(self._replies[call.after])
            if call.extends:
                prompt = self._client.extend(before, reply, appended)
        await asyncio.sleep(call.wait)
        try:
            completion = await self._client.complete(prompt, call.reply_tokens)
        except MainstemError as error:
            raise MainstemError(
                f"call {index + 1} of {len(self._calls)} (session {call.session}, turn {call.turn}, "
                f"about {self._lengths[index]:,} tokens): {error}"
            ) from error
        self._replies[index].set_result((prompt, completion))
        self._on_end(index)
        return completion


def _first(group: BaseExceptionGroup[MainstemError]) -> MainstemError:
    """The first of several failures."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
