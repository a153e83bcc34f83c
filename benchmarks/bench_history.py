"""What one more turn of a long conversation costs the host before its prompt can be scheduled.

    python -m benchmarks.bench_history --out benchmarks/results/history.json

An agent's conversation (instructions, tools, calls and their results) goes on turn by turn, in each of the three APIs:
each time, one reply comes back and one result is new. Timed is what the server does from the moment that a request's
body has arrived to the moment that its prompt is handed to the scheduler (`arrive`: the body is parsed and checked, the
conversation read, rendered and encoded), by the very functions of its routes, and what it remembers at the end of the
reply. Beside it stands what the same prompt costs where nothing is remembered: `transformers`' own rendering, and the
tokenizer; and what the tokenizer needs for the new text alone. Figures are medians over turns whose history is as long
as said, or up to half as long again, in milliseconds; nothing is generated, and no weights are loaded. With `--limit`,
the command fails where a turn at the longest history takes more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, cast

from starlette.requests import Request

from benchmarks.measuring import keep
from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine.history import new_history
from mainstem.model.embedded import fetch_embedded
from mainstem.server import chat, messages, responses
from mainstem.server.bodies import BodyMemory
from mainstem.server.service import Service
from mainstem.tokens import Tokenizer
from mainstem.tools import Dialect

T = TypeVar("T")
MODEL = "mainstem"
WORDS = (Path(__file__).parents[1] / "docs" / "log.md").read_text(encoding="utf-8").split()
MAX_MODEL_LEN = 1_000_000


class Call(NamedTuple):
    """What a reply says, what it calls, and what comes of it."""

    said: str
    call_id: str
    arguments: str
    result: str


class Agent:
    """A conversation that grows by a call and its result at a time; its body in each of the APIs.

    Args:
        seed: two with another one say other things.
        tokens: how long it will be, about: a short one has short instructions and few tools.
        words: of each result.
    """

    def __init__(self, seed: int, tokens: int, words: int) -> None:
        self._words = words
        self._random = random.Random(seed)
        self.system = self._text(min(400, tokens // 10))
        self.question = self._text(60)
        self.tools = [self._tool(number) for number in range(min(12, 1 + tokens // 500))]
        self.calls: list[Call] = []

    def reply(self) -> str:
        """What the model writes next: some words, and a call, whose result is then known too."""
        arguments = json.dumps({"path": "src/main.py", "text": self._text(self._words // 5)}, ensure_ascii=False)
        made = Call(self._text(10), f"call_{len(self.calls):08}", arguments, self._text(self._words))
        self.calls.append(made)
        return f'{made.said}\n<tool_call>\n{{"name": "tool_0", "arguments": {arguments}}}\n</tool_call>'

    def chat(self) -> dict[str, Any]:
        """Body of `/v1/chat/completions`."""
        said: list[Any] = [{"role": "system", "content": self.system}, {"role": "user", "content": self.question}]
        for made in self.calls:
            function = {"name": "tool_0", "arguments": made.arguments}
            call = {"id": made.call_id, "type": "function", "function": function}
            said.append({"role": "assistant", "content": made.said, "tool_calls": [call]})
            said.append({"role": "tool", "tool_call_id": made.call_id, "content": made.result})
        tools = [{"type": "function", "function": {**tool, "parameters": schema}} for tool, schema in self.tools]
        return {"model": MODEL, "messages": said, "tools": tools}

    def responses(self) -> dict[str, Any]:
        """Body of `/v1/responses`, with all of its input."""
        items: list[Any] = [{"role": "user", "content": self.question}]
        for made in self.calls:
            text = {"type": "output_text", "text": made.said, "annotations": []}
            items.append({"type": "message", "role": "assistant", "status": "completed", "content": [text]})
            call = {"type": "function_call", "call_id": made.call_id, "name": "tool_0", "arguments": made.arguments}
            items.append(call)
            items.append({"type": "function_call_output", "call_id": made.call_id, "output": made.result})
        tools = [{"type": "function", **tool, "parameters": schema} for tool, schema in self.tools]
        return {"model": MODEL, "instructions": self.system, "input": items, "tools": tools, "store": False}

    def messages(self) -> dict[str, Any]:
        """Body of `/v1/messages`."""
        said: list[Any] = [{"role": "user", "content": self.question}]
        for made in self.calls:
            call = {"type": "tool_use", "id": made.call_id, "name": "tool_0", "input": json.loads(made.arguments)}
            said.append({"role": "assistant", "content": [{"type": "text", "text": made.said}, call]})
            result = {"type": "tool_result", "tool_use_id": made.call_id, "content": made.result}
            said.append({"role": "user", "content": [result]})
        tools = [{**tool, "input_schema": schema} for tool, schema in self.tools]
        return {"model": MODEL, "max_tokens": 100, "system": self.system, "messages": said, "tools": tools}

    def _text(self, count: int) -> str:
        at = self._random.randrange(len(WORDS))
        return " ".join(WORDS[(at + i) % len(WORDS)] for i in range(count))

    def _tool(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        names = [f"argument_{i}" for i in range(5)]
        properties = {name: {"type": "string", "description": self._text(10)} for name in names}
        schema = {"type": "object", "properties": properties, "required": names[:1]}
        return {"name": f"tool_{number}", "description": self._text(30)}, schema


APIS: dict[str, tuple[Callable[..., Any], Callable[[Agent], dict[str, Any]]]] = {
    "chat": (chat.arrive, Agent.chat),
    "responses": (responses.arrive, Agent.responses),
    "messages": (messages.arrive, Agent.messages),
}


class Clock:
    """Milliseconds of each part, turn by turn."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    def time(self, part: str, work: Callable[[], T]) -> T:
        """Do a part of the work."""
        begin = time.perf_counter()
        result = work()
        self.note(part, begin)
        return result

    def note(self, part: str, begin: float) -> None:
        """A part of the work has been done."""
        self.times.setdefault(part, []).append((time.perf_counter() - begin) * 1e3)

    def medians(self) -> dict[str, float]:
        """Of each part."""
        return {part: round(statistics.median(times), 3) for part, times in self.times.items()}


def new_service(tokenizer: Tokenizer) -> Service:
    """A server's state, without an engine that could compute anything."""
    config = EngineConfig()
    history = new_history(config, tokenizer)
    engine: Any = SimpleNamespace(tokenizer=tokenizer, history=history, config=config, max_model_len=MAX_MODEL_LEN)
    unused = cast(Any, None)
    bodies = BodyMemory.for_engine(config)
    return Service(engine, ServerConfig(), MODEL, unused, Dialect(tokenizer), unused, bodies)


def request_of(body: bytes) -> Request:
    """A request whose body has arrived."""

    parts = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        for part in parts:
            return part
        await asyncio.Event().wait()  # the client stays
        raise AssertionError

    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "method": "POST", "headers": headers, "mainstem.tenant": ("tenant", "")}
    return Request(scope, receive)


async def measure(tokenizer: Tokenizer, api: str, tokens: int, words: int, turns: int) -> dict[str, Any]:
    """Time turns of conversations that have grown to so many tokens."""
    arrive, write = APIS[api]
    clock = Clock()
    sizes: list[tuple[int, ...]] = []
    last: deque[Any] = deque(maxlen=5)
    seed = 0
    while len(sizes) < turns:
        service = new_service(tokenizer)
        agent = Agent(seed, tokens, words)
        seed += 1
        length = 0
        while length < 1.5 * tokens and len(sizes) < turns:
            body = json.dumps(write(agent), ensure_ascii=False).encode()
            request = request_of(body)
            begin = time.perf_counter()
            arrived = await arrive(service, request)
            known = arrived.ready.prompt.known
            timed = length >= tokens
            if timed:
                clock.note("arrive", begin)
                sizes.append((length, len(agent.calls), len(body), known.tokenized))
                last.append(arrived)
            length = len(known.ids)
            reply = agent.reply()
            ids = tokenizer.encode(reply + "<|im_end|>").tolist()
            begin = time.perf_counter()
            service.engine.history.remember(known, ids, reply)
            if timed:
                clock.note("remember", begin)
    for arrived in last:  # apart, so that one does not empty the processor's caches for the other
        _without(tokenizer, arrived, clock)
    history, calls, size, new = (int(statistics.median(column)) for column in zip(*sizes, strict=True))
    counts = {"history_tokens": history, "calls": calls, "body_bytes": size, "new_tokens": new}
    return {"api": api, "words_per_result": words, **counts, "turns": turns, "ms": clock.medians()}


def _without(tokenizer: Tokenizer, arrived: Any, clock: Clock) -> None:
    """The same prompt with nothing remembered, and the new text by itself."""
    template, conversation = tokenizer.chat, arrived.turn.conversation
    known = arrived.ready.prompt.known
    source = template._template_for(uses_tools=True)
    seen = [template._as_template_sees(message, source, as_objects=False) for message in conversation.messages]
    tools = template.offered(conversation.tools)
    clock.time("template, transformers", lambda: template._apply(source, seen, tools, add_generation_prompt=True))
    clock.time("tokenizer, whole prompt", lambda: tokenizer.encode(known.text))
    new = [span for span in known.spans if span.origin == "new"]
    text = known.text[new[0].start :] if new else ""
    clock.time("tokenizer, new text", lambda: tokenizer.encode(text))


async def measure_all(tokenizer: Tokenizer, sizes: Sequence[int], turns: int) -> list[dict[str, Any]]:
    """Each API at each size, with few long messages; at the largest size with many short ones too."""
    rows = []
    for api in APIS:
        for size in sizes:
            for words in (300, 80) if size == max(sizes) else (300,):
                rows.append(await measure(tokenizer, api, size, words, turns))
                print(json.dumps(rows[-1]), flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1000, 10_000, 100_000], help="lengths of the history")
    parser.add_argument("--turns", type=int, default=41, help="that are timed")
    parser.add_argument("--limit", type=float, help="most milliseconds to a prompt, at the longest history")
    parser.add_argument("--out", type=Path, default=Path("build/bench/history.json"))
    arguments = parser.parse_args(argv)
    tokenizer = Tokenizer.load(fetch_embedded(lambda *_: None))
    rows = asyncio.run(measure_all(tokenizer, arguments.tokens, arguments.turns))
    keep(arguments.out, {"workload": __doc__, "conversations": rows})
    longest = [row["ms"]["arrive"] for row in rows if row["history_tokens"] >= max(arguments.tokens)]
    return int(arguments.limit is not None and max(longest) > arguments.limit)


if __name__ == "__main__":
    sys.exit(main())
