"""Replies in the form of OpenAI's Responses: an object with a list of output items, and the events that build it.

It knows that form only; what was asked for is the business of `responses`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mainstem.server.diagnostics import openai_diagnostics, usage_sibling
from mainstem.server.errors import to_api_error
from mainstem.server.logprobs import chat_logprobs
from mainstem.server.replies import ReplyReader, ReplyWriter
from mainstem.server.streaming import event
from mainstem.tokens import Message, ToolCall
from mainstem.tools import Call, Reasoning, Segment, Text

if TYPE_CHECKING:
    from mainstem.engine.outputs import PositionLogprobs, RequestOutput
    from mainstem.server.generation import Generation
    from mainstem.server.service import Service
    from mainstem.server.turns import ReadyTurn

Keep = Callable[[dict[str, Any], Message], None]
Event = tuple[str, dict[str, Any]]


class ResponseWriter(ReplyWriter):
    """One response.

    Args:
        service: that it comes from.
        echo: its fields that repeat the request.
        ready: the turn.
        top_logprobs: how many alternatives to report at each position of the text; None for no log-probabilities.
        keep: given the finished response and what the assistant said in it.

    Attributes:
        id: of the response.
    """

    closing = b""

    def __init__(
        self, service: Service, echo: dict[str, Any], ready: ReadyTurn, *, top_logprobs: int | None, keep: Keep
    ) -> None:
        self._service = service
        self._echo = echo
        self._reader = ReplyReader(ready.new_parser())
        self._top = top_logprobs
        self._keep = keep
        self._created = int(time.time())
        self._sequence = 0
        self._items = _Items(with_logprobs=top_logprobs is not None)
        self.id = f"resp_{uuid.uuid4().hex}"

    async def whole(self, generation: Generation) -> dict[str, Any]:
        async for _ in self._run(generation):
            pass
        return self._finished

    async def events(self, generation: Generation) -> AsyncGenerator[bytes]:
        begun = self._response("in_progress", **_diagnostics(generation))
        yield self._event("response.created", {"response": begun})
        yield self._event("response.in_progress", {"response": begun})
        async for name, fields in self._run(generation):
            yield self._event(name, fields)
        yield self._event(f"response.{self._finished['status']}", {"response": self._finished})

    def failure(self, error: Exception) -> bytes:
        reply = to_api_error(error)
        failed = self._response("failed", error={"code": "server_error", "message": str(reply)})
        return self._event("response.failed", {"response": failed})

    async def _run(self, generation: Generation) -> AsyncGenerator[Event]:
        """The events of the output items; `_finished` is the response once they are over."""
        output: RequestOutput | None = None
        async for part in generation:
            output = part.output
            segments = self._reader.read(output)
            logprobs = self._logprobs(output.logprobs)
            for position, segment in enumerate(segments or ([Text("")] if logprobs else [])):
                for news in self._items.add(segment, [] if position else logprobs):
                    yield news
        assert output is not None
        status = "incomplete" if output.finish_reason == "length" else "completed"
        for news in self._items.close(status):
            yield news
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        self._finished = self._response(
            status,
            output=self._items.done,
            incomplete_details=incomplete,
            completed_at=int(time.time()) if status == "completed" else None,
            usage=self._usage(generation),
            **_diagnostics(generation),
        )
        self._keep(self._finished, self._items.message())

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self._service.model_name,
            "output": [],
            "usage": None,
            **self._echo,
            **fields,
        }

    def _usage(self, generation: Generation) -> dict[str, Any]:
        usage = generation.usage()
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.cached_tokens,
                "cache_write_tokens": usage.written_tokens(caching=self._service.caching),
            },
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._reader.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            **usage_sibling(generation.diagnoses),
        }

    def _logprobs(self, positions: Iterable[PositionLogprobs]) -> list[dict[str, Any]]:
        if self._top is None:
            return []
        content: list[dict[str, Any]] = chat_logprobs(self._service.engine.tokenizer, positions, self._top)["content"]
        return content

    def _event(self, name: str, fields: dict[str, Any]) -> bytes:
        data = {"type": name, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event(data, name=name)


class _Items:
    """The output items, one after the other, and the events that build them.

    Attributes:
        done: the finished ones.
    """

    def __init__(self, *, with_logprobs: bool) -> None:
        self.done: list[dict[str, Any]] = []
        self._with_logprobs = with_logprobs
        self._open: dict[str, Any] | None = None
        self._text = ""
        self._logprobs: list[dict[str, Any]] = []

    def add(self, segment: Segment, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        """Take in the next segment."""
        match segment:
            case Call():
                yield from self.close()
                yield from self._call(segment)
            case Text(text):
                if self._open is None or self._open["type"] != "message":
                    yield from self.close()
                    yield from self._begin_text()
                self._text += text
                self._logprobs += logprobs
                yield self._about("response.output_text.delta", content_index=0, delta=text, logprobs=logprobs)
            case Reasoning(text):
                if self._open is None or self._open["type"] != "reasoning":
                    yield from self.close()
                    yield from self._begin({"id": _new_id("rs"), "type": "reasoning", "summary": [], "content": []})
                self._text += text
                yield self._about("response.reasoning_text.delta", content_index=0, delta=text)

    def close(self, status: str = "completed") -> Iterator[Event]:
        """End the open item, if one is open."""
        item = self._open
        if item is None:
            return
        if item["type"] == "message":
            part = self._text_part(self._text, self._logprobs)
            yield self._about("response.output_text.done", content_index=0, text=self._text, logprobs=self._logprobs)
            yield self._about("response.content_part.done", content_index=0, part=part)
            item = {**item, "status": status, "content": [part]}
        else:
            yield self._about("response.reasoning_text.done", content_index=0, text=self._text)
            item = {**item, "content": [{"type": "reasoning_text", "text": self._text}]}
        yield from self._end(item)

    def message(self) -> Message:
        """What was said, thought and called, as one message."""
        texts = [item["content"][0]["text"] for item in self.done if item["type"] == "message"]
        thoughts = [item["content"][0]["text"] for item in self.done if item["type"] == "reasoning"]
        calls = [
            ToolCall(item["call_id"], item["name"], item["arguments"])
            for item in self.done
            if item["type"] == "function_call"
        ]
        return Message(
            role="assistant",
            parts=("".join(texts),) if texts else (),
            reasoning="".join(thoughts) if thoughts else None,
            tool_calls=tuple(calls),
        )

    def _begin_text(self) -> Iterator[Event]:
        yield from self._begin(
            {"id": _new_id("msg"), "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        )
        yield self._about("response.content_part.added", content_index=0, part=self._text_part("", []))

    def _call(self, call: Call) -> Iterator[Event]:
        item = {
            "id": _new_id("fc"),
            "type": "function_call",
            "call_id": _new_id("call"),
            "name": call.name,
            "arguments": "",
            "status": "in_progress",
        }
        yield from self._begin(item)
        yield self._about("response.function_call_arguments.delta", delta=call.arguments)
        yield self._about("response.function_call_arguments.done", name=call.name, arguments=call.arguments)
        yield from self._end({**item, "arguments": call.arguments, "status": "completed"})

    def _begin(self, item: dict[str, Any]) -> Iterator[Event]:
        self._open, self._text, self._logprobs = item, "", []
        yield "response.output_item.added", {"output_index": len(self.done), "item": item}

    def _end(self, item: dict[str, Any]) -> Iterator[Event]:
        yield "response.output_item.done", {"output_index": len(self.done), "item": item}
        self.done.append(item)
        self._open = None

    def _about(self, kind: str, /, **fields: Any) -> Event:
        """An event about the open item."""
        assert self._open is not None
        return kind, {"item_id": self._open["id"], "output_index": len(self.done), **fields}

    def _text_part(self, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
        return part if self._with_logprobs else {**part, "logprobs": []}


def _diagnostics(generation: Generation) -> dict[str, Any]:
    return {"prompt_cache_diagnostics": openai_diagnostics(generation.origin, generation.diagnoses)}


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:24]}"
