"""How a generation becomes an HTTP reply, whole or as a stream, for any form of reply.

The modules of the APIs say what the form is; this module knows the order of things: headers only once the first token
is there, so that refusals have their proper status and the cache's share is known.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mainstem import __version__
from mainstem.server.diagnostics import CAUSE_HEADER, miss_header, openai_diagnostics, usage_sibling
from mainstem.server.generation import Generation, Part, Usage
from mainstem.server.streaming import DONE, ClientGone, EventStream, event, failure_event, until_disconnect

if TYPE_CHECKING:
    from mainstem.engine.outputs import FinishReason, PositionLogprobs, RequestOutput
    from mainstem.server.service import Service
    from mainstem.tools import ReplyParser, Segment

CLIENT_CLOSED_REQUEST = 499


class ReplyWriter(ABC):
    """Writes one reply in the form of an API.

    Attributes:
        closing: what a stream ends with.
    """

    closing: bytes = DONE

    @abstractmethod
    async def whole(self, generation: Generation) -> dict[str, Any]:
        """The body of a reply sent whole; runs the generation."""

    @abstractmethod
    def events(self, generation: Generation) -> AsyncGenerator[bytes]:
        """The framed events of a stream, without the closing; runs the generation."""

    def failure(self, error: Exception) -> bytes:
        """The last event of a stream that fails."""
        return failure_event(error)


class ReplyReader:
    """Takes one reply apart as its outputs come, and counts the tokens of its thoughts."""

    def __init__(self, parser: ReplyParser) -> None:
        self._parser = parser
        self.reasoning_tokens = 0

    @property
    def num_calls(self) -> int:
        """How many tool calls came so far."""
        return self._parser.num_calls

    def read(self, output: RequestOutput) -> list[Segment]:
        """What the output adds for certain."""
        if self._parser.in_reasoning:
            self.reasoning_tokens += len(output.token_ids)
        segments = self._parser.push(output.text)
        return segments if output.finish_reason is None else segments + self._parser.flush()


class Choice:
    """One choice of a reply that is not streamed, as far as it has come."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[PositionLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.outputs: list[RequestOutput] = []

    def add(self, part: Part) -> None:
        """Take in what is new."""
        output = part.output
        self.outputs.append(output)
        self.text += output.text
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self.finish_reason = output.finish_reason
        self.stop_reason = output.stop_reason


class ReplyShape(ABC):
    """What a reply looks like: `choice` for one that is sent whole, `chunks` for one that is streamed.

    Attributes:
        id: the reply's id, which also names the request in the engine.
        object: the `object` field of a whole reply.
        chunk_object: the `object` field of a chunk.
    """

    id_prefix: str
    object: str
    chunk_object: str

    def __init__(self, service: Service) -> None:
        self.service = service
        self.id = f"{self.id_prefix}-{uuid.uuid4().hex}"
        self.created = int(time.time())

    def chosen(self, choices: list[Choice]) -> list[Choice]:
        """Of the replies that were generated, those that are sent, numbered as they are sent; only of whole ones."""
        return choices

    @abstractmethod
    def choice(self, choice: Choice) -> dict[str, Any]:
        """The object in `choices` of a whole reply."""

    @abstractmethod
    def chunks(self, part: Part) -> Iterator[dict[str, Any]]:
        """The objects to stream, each as the only one in a chunk's `choices`; none when there is nothing to say yet."""

    def whole(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        """A reply sent whole."""
        return {**self._head(self.object), "choices": choices, "usage": usage}

    def chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """One chunk of a stream."""
        return {**self._head(self.chunk_object), "choices": choices}

    def usage(self, usage: Usage) -> dict[str, Any]:
        """The usage object, which says what the prefix cache did."""
        return usage.as_json(caching=self.service.caching)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.service.model_name,
            "system_fingerprint": f"mainstem-{__version__}",
            "service_tier": "default",
        }


async def answer(
    request: Request, generation: Generation, shape: ReplyShape, *, stream: bool, include_usage: bool
) -> Response:
    """Run the generation and make the reply, in OpenAI's form with `choices`."""
    return await send(request, generation, _ChoicesWriter(shape, include_usage=include_usage), stream=stream)


async def send(request: Request, generation: Generation, writer: ReplyWriter, *, stream: bool) -> Response:
    """Run the generation and make the reply; the generation is closed on every path."""
    streaming = False
    try:
        if stream:
            await until_disconnect(request.receive, generation.start())
            streaming = True
            return EventStream(
                writer.events(generation),
                close=generation.aclose,
                headers=_headers(generation),
                closing=writer.closing,
                failure=writer.failure,
            )
        body = await until_disconnect(request.receive, writer.whole(generation))
        return JSONResponse(body, headers=_headers(generation))
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        if not streaming:
            await generation.aclose()


def _headers(generation: Generation) -> dict[str, str]:
    """What the cache did; nothing while a prompt's share is unknown."""
    if not generation.knows_shares:
        return {}
    usage, cause = generation.usage(), miss_header(generation.diagnoses)
    return {
        "x-cached-tokens": f"{usage.cached_tokens}/{usage.prompt_tokens}",
        **({} if cause is None else {CAUSE_HEADER: cause}),
    }


class _ChoicesWriter(ReplyWriter):
    """Replies with a list of choices, one for each reply of each prompt."""

    def __init__(self, shape: ReplyShape, *, include_usage: bool) -> None:
        self._shape = shape
        self._include_usage = include_usage

    async def whole(self, generation: Generation) -> dict[str, Any]:
        choices = [Choice(index) for index in range(generation.num_choices)]
        async for part in generation:
            choices[part.choice].add(part)
        shape = self._shape
        chosen = [shape.choice(choice) for choice in shape.chosen(choices)]
        return {**shape.whole(chosen, self._usage(generation)), **self._diagnostics(generation)}

    async def events(self, generation: Generation) -> AsyncGenerator[bytes]:
        shape = self._shape
        # With usage asked for, every chunk has the field, null until the last.
        without_usage = {"usage": None} if self._include_usage else {}
        async for part in generation:
            for choice in shape.chunks(part):
                yield event({**shape.chunk([choice]), **without_usage})
        if self._include_usage or self._diagnostics(generation):
            usage = {"usage": self._usage(generation)} if self._include_usage else {}
            yield event({**shape.chunk([]), **usage, **self._diagnostics(generation)})

    def _usage(self, generation: Generation) -> dict[str, Any]:
        return {**self._shape.usage(generation.usage()), **usage_sibling(generation.diagnoses)}

    def _diagnostics(self, generation: Generation) -> dict[str, Any]:
        told = openai_diagnostics(generation.origin, generation.diagnoses)
        return {} if told is None else {"prompt_cache_diagnostics": told}
