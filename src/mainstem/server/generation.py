"""All replies of one HTTP request as a single stream: one engine request a prompt, merged as their tokens come.

Knows how to start, count, remember and give up the engine's requests. It does not know how a reply looks on the wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mainstem.server.diagnostics import Diagnosis, diagnose
from mainstem.server.errors import shutting_down
from mainstem.server.lifetime import NO_WISHES, Lifetime

if TYPE_CHECKING:
    from mainstem.engine.outputs import RequestOutput, RequestUsage
    from mainstem.explain import Origin
    from mainstem.params import SamplingParams
    from mainstem.server.prompts import Prompt
    from mainstem.server.service import Service

T = TypeVar("T")


class Part(NamedTuple):
    """News of one choice. `choice` is prompt index x n + reply index; `first` marks the first news of that choice."""

    choice: int
    output: RequestOutput
    first: bool


class Usage(NamedTuple):
    """Tokens of a whole HTTP request: each prompt counts once, whatever its number of replies.

    What was cached of a prompt, and what was not and why, is told as of the first of its replies that was let in. Later
    ones may compute some of it again, above all the last token; that is in the metrics alone.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0

    def written_tokens(self, *, caching: bool) -> int:
        """What was not cached before has been written to the cache, if there is one."""
        return self.prompt_tokens - self.cached_tokens if caching else 0

    def as_json(self, *, caching: bool) -> dict[str, Any]:
        """OpenAI's `usage` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": self.cached_tokens,
                "cache_write_tokens": self.written_tokens(caching=caching),
                "audio_tokens": 0,
            },
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning_tokens,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }


class _Said:
    """What one choice said so far."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.texts: list[str] = []

    def add(self, output: RequestOutput) -> None:
        self.token_ids += output.token_ids
        self.texts.append(output.text)


class Generation:
    """Iterate it for the parts; `aclose` it on every path, which aborts what still runs.

    Iterating raises what the engine raises, and an ApiError (503) when the engine gave a reply up because it stops.
    """

    def __init__(
        self,
        service: Service,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        *,
        namespace: tuple[str, ...],
        origin: Origin,
        lifetime: Lifetime = NO_WISHES,
    ) -> None:
        if lifetime.prewarm:
            params = replace(params, n=1, grammar=None)
        self.prompts = prompts
        self.origin = origin
        self._service = service
        self._namespace = namespace
        self._diagnoses: dict[int, Diagnosis] = {}
        self.params = params
        self.lifetime = lifetime
        self.num_choices = len(prompts) * params.n
        self._timings = service.metrics.request_timings()
        self._usages: dict[int, RequestUsage] = {}
        self._cached: dict[int, int] = {}  # tokens of each prompt of which something came
        self._history = service.engine.history
        self._said: dict[int, _Said] = {}
        self._first: list[Part] = []
        streams = [
            service.engine.generate(
                prompt.ids,
                params,
                namespace=namespace,
                origin=replace(origin, position=position),
                hints=lifetime.hints(prompt),
                prewarm=lifetime.prewarm,
            )
            for position, prompt in enumerate(prompts)
        ]
        self._parts = self._count(merge(streams))

    async def start(self) -> None:
        """Wait for the first news, which a later iteration begins with. Errors of submission surface here."""
        self._first = [await anext(self._parts)]

    async def __aiter__(self) -> AsyncIterator[Part]:
        for part in self._first:
            yield part
        async for part in self._parts:
            yield part

    async def aclose(self) -> None:
        """Abort whatever still runs. Closing twice does nothing."""
        await self._parts.aclose()

    def usage(self) -> Usage:
        """Counts so far; final once the iteration ended."""
        return Usage(
            prompt_tokens=sum(len(prompt.ids) for prompt in self.prompts),
            cached_tokens=sum(self._cached.values()),
            completion_tokens=sum(usage.completion_tokens for usage in self._usages.values()),
        )

    @property
    def diagnoses(self) -> list[Diagnosis]:
        """Why tokens were not cached, for each prompt of which something came; none if no records are kept."""
        return [self._diagnoses[position] for position in sorted(self._diagnoses)]

    @property
    def knows_shares(self) -> bool:
        """Whether it is known of every prompt how much of it was cached, which does not change any more."""
        return len(self._cached) == len(self.prompts)

    async def _count(self, outputs: AsyncGenerator[tuple[int, RequestOutput]]) -> AsyncGenerator[Part]:
        try:
            async for position, output in outputs:
                if output.finish_reason == "abort":
                    raise shutting_down()
                choice = position * self.params.n + output.index
                first = choice not in self._usages
                self._usages[choice] = output.usage
                if position not in self._cached:
                    self._cached[position], record = output.usage.of_prompt
                    if record is not None:
                        self._diagnoses[position] = await diagnose(
                            self._service, record, self.prompts[position].ids, namespace=self._namespace
                        )
                self._timings.observe(choice, output)
                self._said.setdefault(choice, _Said()).add(output)
                if output.finish_reason is not None:
                    # Before the client can send the reply back.
                    self._remember(choice)
                yield Part(choice, output, first)
        finally:
            await outputs.aclose()
            for choice in list(self._said):
                self._remember(choice)

    def _remember(self, choice: int) -> None:
        """Keep the exact tokens of a reply, whole or as far as it came."""
        said = self._said.pop(choice)
        known = self.prompts[choice // self.params.n].known
        if known is not None:
            self._history.remember(known, said.token_ids, "".join(said.texts))


async def merge(streams: Sequence[AsyncGenerator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """The items of several generators, each with the position of its generator, as they come.

    The first error of any of them ends the whole. All of them are closed when this one is.
    """
    if len(streams) == 1:
        # The common case needs no queue between the engine and the client.
        try:
            async for item in streams[0]:
                yield 0, item
        finally:
            await streams[0].aclose()
        return
    queue: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue()

    async def pump(position: int, stream: AsyncGenerator[T]) -> None:
        try:
            async for item in stream:
                queue.put_nowait((position, item))
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)
        finally:
            await stream.aclose()

    tasks = [asyncio.create_task(pump(position, stream)) for position, stream in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            news = await queue.get()
            if news is None:
                running -= 1
            elif isinstance(news, Exception):
                raise news
            else:
                yield news
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
