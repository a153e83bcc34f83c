"""What one more turn of a long conversation costs the host before its prompt can be scheduled, part by part.

    python -m benchmarks.bench_history --out benchmarks/results/history.json

An agent's conversation (instructions, tools, calls and their results) is made as long as `--tokens` and goes on turn by
turn: each time, one reply comes back and one result is new, and the body of the request is read, rendered and encoded
by the same functions that the server calls, each timed by itself. The model's reply is remembered in between, off the
clock, as it is in the server after the reply. Beside it, what the same prompt costs without anything remembered:
`transformers`' own rendering, and the tokenizer. Figures are medians over the turns, in milliseconds; nothing is
generated, and no weights are loaded. With `--limit`, the command fails where the parts sum to more.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import from_json

from benchmarks.measuring import keep
from mainstem.model.embedded import fetch_embedded
from mainstem.server.protocol import ChatBody
from mainstem.tokens import Conversation, TokenHistory, Tokenizer
from mainstem.tokens.chat import read_messages, read_tools
from mainstem.tools import Dialect

T = TypeVar("T")
NUM_TOOLS = 12
WORDS = Path(__file__).parents[1] / "docs" / "log.md"


class Agent:
    """A conversation that grows by a call and its result at a time."""

    def __init__(self, words: Sequence[str], words_per_result: int) -> None:
        self._words = words
        self._size = words_per_result
        self._random = random.Random(0)
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": self._text(400)},
            {"role": "user", "content": self._text(60)},
        ]
        self.tools = [self._tool(number) for number in range(NUM_TOOLS)]
        self._call = ""

    def reply(self) -> str:
        """What the model writes: some words, and a call."""
        self._call = json.dumps({"path": "src/main.py", "text": self._text(self._size // 5)}, ensure_ascii=False)
        self._said = self._text(10)
        return f'{self._said}\n<tool_call>\n{{"name": "tool_1", "arguments": {self._call}}}\n</tool_call>'

    def go_on(self) -> None:
        """The reply comes back, with the result of its call."""
        call = {
            "id": f"call_{len(self.messages):08}",
            "type": "function",
            "function": {"name": "tool_1", "arguments": self._call},
        }
        self.messages += [
            {"role": "assistant", "content": self._said, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": self._text(self._size)},
        ]

    def body(self) -> bytes:
        """Of the request."""
        return json.dumps({"messages": self.messages, "tools": self.tools}, ensure_ascii=False).encode()

    def _text(self, count: int) -> str:
        at = self._random.randrange(len(self._words))
        return " ".join(self._words[(at + i) % len(self._words)] for i in range(count))

    def _tool(self, number: int) -> dict[str, Any]:
        names = [f"argument_{i}" for i in range(5)]
        properties = {name: {"type": "string", "description": self._text(10)} for name in names}
        schema = {"type": "object", "properties": properties, "required": names[:1]}
        return {
            "type": "function",
            "function": {"name": f"tool_{number}", "description": self._text(30), "parameters": schema},
        }


class Clock:
    """Milliseconds of each part, turn by turn."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    def time(self, part: str, work: Callable[[], T]) -> T:
        """Do a part of the work."""
        begin = time.perf_counter()
        result = work()
        self.times.setdefault(part, []).append((time.perf_counter() - begin) * 1e3)
        return result

    def medians(self) -> dict[str, float]:
        """Of each part."""
        return {part: round(statistics.median(times), 3) for part, times in self.times.items()}


def measure(tokenizer: Tokenizer, words_per_result: int, num_tokens: int, turns: int) -> dict[str, Any]:
    """Grow a conversation to so many tokens, then time so many turns."""
    agent = Agent(WORDS.read_text(encoding="utf-8").split(), words_per_result)
    history = TokenHistory(tokenizer, max_entries=100_000, max_bytes=2**30)
    meaning = Dialect(tokenizer).meaning([tool["function"]["name"] for tool in agent.tools])
    ours, plain = Clock(), Clock()
    length = left = 0
    tokenized: list[int] = []
    while length < num_tokens or left < turns:
        clock = ours if length >= num_tokens else Clock()
        left += clock is ours
        raw = agent.body()
        value = clock.time("JSON", partial(from_json, raw))
        body = clock.time("validation", partial(ChatBody.model_validate, value))
        conversation = clock.time("messages", partial(_read, body))
        text = clock.time("template", partial(tokenizer.chat.render, conversation))
        prompt = clock.time("token ids", partial(history.encode, text, meaning=meaning))
        length = len(prompt.ids)
        if clock is ours:
            tokenized.append(prompt.tokenized)
        if clock is ours and left % 5 == 1:
            _without(tokenizer, conversation, text, plain)
        reply = agent.reply()
        history.remember(prompt, tokenizer.encode(reply + "<|im_end|>").tolist(), reply)
        agent.go_on()
    parts, alone = ours.medians(), plain.medians()
    return {
        "messages": len(agent.messages),
        "tokens": length,
        "body_bytes": len(raw),
        "new_tokens": statistics.median(tokenized),
        "parts_ms": parts,
        "sum_ms": round(sum(parts.values()), 3),
        "without_ms": alone,
        "turns": turns,
    }


def _read(body: ChatBody) -> Conversation:
    return Conversation(read_messages(body.messages), read_tools(body.tools))


def _without(tokenizer: Tokenizer, conversation: Conversation, text: str, clock: Clock) -> None:
    """The same prompt with nothing remembered."""
    chat = tokenizer.chat
    template = chat._template_for(uses_tools=True)
    seen = [chat._as_template_sees(message, template, as_objects=False) for message in conversation.messages]
    tools = chat.offered(conversation.tools)
    clock.time("template, transformers", lambda: chat._apply(template, seen, tools, add_generation_prompt=True))
    clock.time("tokenizer", lambda: tokenizer.encode(text))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure few long messages and many short ones; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, default=100_000, help="length of the history")
    parser.add_argument("--turns", type=int, default=41, help="that are timed")
    parser.add_argument("--limit", type=float, help="most milliseconds that the parts may sum to, with long messages")
    parser.add_argument("--out", type=Path, default=Path("build/bench/history.json"))
    arguments = parser.parse_args(argv)
    tokenizer = Tokenizer.load(fetch_embedded(lambda *_: None))
    rows = []
    for words_per_result in (300, 80):
        rows.append(measure(tokenizer, words_per_result, arguments.tokens, arguments.turns))
        print(json.dumps(rows[-1], indent=2), flush=True)
    keep(arguments.out, {"workload": __doc__, "conversations": rows})
    return int(arguments.limit is not None and rows[0]["sum_ms"] > arguments.limit)


if __name__ == "__main__":
    sys.exit(main())
