"""Random clients of a server, in a process of their own: what they ask, and whether what came back was in order.

    python -m benchmarks.soak_clients URL --model NAME --seconds 60 --seed 0

A client belongs to a tenant, and does one thing after another: conversations that grow until they are too long, over
all APIs, streamed or not, with tools, forced calls, JSON schemas and wishes of what to keep; prompts of token ids that
begin alike; requests that it leaves in the middle, or half sent; prompts and bodies that are too long; wrong keys,
models and values; resets of the cache. Every request must be answered in full, or refused with a reason that is
expected of it.
Writes what happened as JSON to its standard output. Knows HTTP, and nothing of the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

import httpx

TIMEOUT_S = 300.0
TENANTS = {"alice": "alice-key", "bob": "bob-key", "carol": "carol-key", "root": "root-key"}
OPERATOR = "root"
Refusals: TypeAlias = "set[tuple[int, str | None]]"
TOO_LONG: Refusals = {(400, "context_length_exceeded")}
WORDS = [
    "the",
    "river",
    "runs",
    "to",
    "the",
    "sea",
    "and",
    "gives",
    "it",
    "back",
    "as",
    "rain,",
    "again",
    "and",
    "again;",
    "def",
    "main()",
    "->",
    "int:",
    "return",
    "0",
    "🌳",
]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
FORECAST: dict[str, Any] = {
    "name": "forecast",
    "description": "The weather of some days.",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]},
}
CHAT_TOOLS: list[Any] = [{"type": "function", "function": FORECAST}]
MESSAGES_TOOLS: list[Any] = [
    {"name": "forecast", "description": FORECAST["description"], "input_schema": FORECAST["parameters"]}
]
SYSTEMS = [f"You are assistant {number}. " + " ".join(WORDS * 6) for number in range(3)]
ENDS = ("data: [DONE]", "event: message_stop", "event: response.completed", "event: response.incomplete")


class Fault(NamedTuple):
    """An answer that was not in order."""

    action: str
    status: int
    said: str


class Record:
    """What happened so far."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self.slowest_s = 0.0
        self.cached_tokens = 0
        self.prompt_tokens = 0

    def note(self, action: str, outcome: str, seconds: float) -> None:
        """An action ended so, as it should."""
        self.outcomes[f"{action}: {outcome}"] += 1
        self.slowest_s = max(self.slowest_s, seconds)

    def fault(self, action: str, status: int, said: str) -> None:
        """It did not."""
        self.faults.append(Fault(action, status, said[:500]))

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "requests": self.outcomes.total() + len(self.faults),
            "outcomes": dict(sorted(self.outcomes.items())),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "slowest_seconds": round(self.slowest_s, 2),
            "num_faults": len(self.faults),
            "faults": [fault._asdict() for fault in self.faults[:20]],
        }


class Client:
    """One of them.

    Args:
        http: a connection pool to the server.
        model: the name that it serves.
        tenant: whose key it has.
        rng: what it does next.
        record: where it notes what came back.
    """

    def __init__(self, http: httpx.AsyncClient, model: str, tenant: str, rng: random.Random, record: Record) -> None:
        self._http = http
        self._model = model
        self._tenant = tenant
        self._rng = rng
        self._record = record
        self._chat: list[Any] = []
        self._messages: list[Any] = []
        self._response_id: str | None = None

    async def act(self) -> None:
        """Do one thing."""
        actions: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (30, self._next_chat),
            (15, self._next_message),
            (10, self._next_response),
            (25, self._completion),
            (14, self._leave),
            (2, self._half_a_body),
            (6, self._too_long),
            (8, self._wrong),
            (1, self._reset),
            (3, self._look),
        ]
        (action,) = self._rng.choices([call for _, call in actions], [weight for weight, _ in actions])
        await action()

    # -- what is served -------------------------------------------------------------------------------------------

    async def _next_chat(self) -> None:
        rng = self._rng
        body = self._chat_body()
        reply = await self._ask("chat", "/v1/chat/completions", body, TOO_LONG if len(self._chat) > 2 else set())
        if reply is None or rng.random() < 0.1:
            self._chat = []
        elif reply.get("choices"):
            said = reply["choices"][0]["message"]
            self._chat.append(said)
            self._chat += [
                {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
                for call in said.get("tool_calls") or ()
            ]
        else:  # streamed: it goes on from what it takes to be the reply
            self._chat.append({"role": "assistant", "content": self._text(3, 12)})

    def _chat_body(self) -> dict[str, Any]:
        rng = self._rng
        if not self._chat:
            self._chat = [{"role": "system", "content": rng.choice(SYSTEMS)}]
        content: Any = self._text(3, 60)
        if rng.random() < 0.4:
            mark = rng.choice([{}, {"cache_control": {"type": "ephemeral", "ttl": rng.choice(["5m", "1h"])}}])
            content = [{"type": "text", "text": content, **mark}]
        self._chat.append({"role": "user", "content": content})
        body: dict[str, Any] = {"messages": list(self._chat), **self._common(), **self._wishes()}
        match rng.randrange(6):
            case 0:
                body |= {"tools": CHAT_TOOLS, "tool_choice": rng.choice(["auto", "none", "required"])}
            case 1:
                schema = {"name": "answer", "strict": True, "schema": SCHEMA}
                body["response_format"] = {"type": "json_schema", "json_schema": schema}
            case 2:
                body |= {"n": rng.randint(2, 4), "logprobs": True, "top_logprobs": 2}
        return body

    async def _next_message(self) -> None:
        rng = self._rng
        mark = rng.choice([{}, {"cache_control": {"type": "ephemeral", "ttl": rng.choice(["5m", "1h"])}}])
        self._messages.append({"role": "user", "content": [{"type": "text", "text": self._text(3, 60), **mark}]})
        body: dict[str, Any] = {
            **self._common(),
            "system": [{"type": "text", "text": rng.choice(SYSTEMS), **mark}],
            "messages": list(self._messages),
        }
        if rng.random() < 0.3:
            body |= {"tools": MESSAGES_TOOLS, "tool_choice": {"type": rng.choice(["auto", "any"])}}
        too_long: Refusals = {(400, None)} if len(self._messages) > 2 else set()
        reply = await self._ask("messages", "/v1/messages", body, too_long)
        if reply is None or rng.random() < 0.1:
            self._messages = []
        else:
            self._messages.append({"role": "assistant", "content": self._text(3, 12)})

    async def _next_response(self) -> None:
        body: dict[str, Any] = {**self._common(limit="max_output_tokens"), "input": self._text(3, 60)}
        expected: Refusals = set()
        if self._response_id:
            # It grows, and the server keeps few of them.
            body["previous_response_id"], expected = self._response_id, {(404, None), (400, None)}
        else:
            body["instructions"] = self._rng.choice(SYSTEMS)
        reply = await self._ask("responses", "/v1/responses", body, expected)
        self._response_id = reply.get("id") if reply and self._rng.random() < 0.9 else None

    async def _completion(self) -> None:
        await self._ask("completions", "/v1/completions", self._completion_body(), set())

    def _completion_body(self) -> dict[str, Any]:
        rng = self._rng
        root = [rng.randrange(3), *range(3, 3 + rng.choice([0, 100, 300]))]
        prompt: Any = root + [rng.randrange(3, 400) for _ in range(rng.choice([1, 50, 400]))]
        if rng.random() < 0.2:
            prompt = [prompt, [*root, 7], self._rng.choices(range(3, 400), k=30)]
        body: dict[str, Any] = {"prompt": prompt, **self._common(), **self._wishes()}
        if rng.random() < 0.2:
            body |= {"n": 2, "best_of": 3, "logprobs": 1, "stream": False}
        if rng.random() < 0.3:
            body["cache_salt"] = rng.choice(["one", "two"])
        return body

    # -- what is not ----------------------------------------------------------------------------------------------

    async def _leave(self) -> None:
        """Go away before the end."""
        rng = self._rng
        path, body = rng.choice(
            [("/v1/completions", self._completion_body()), ("/v1/chat/completions", self._chat_body())]
        )
        self._chat = []
        body |= {"stream": rng.random() < 0.6, "max_tokens": 500, "ignore_eos": True}
        begin = time.perf_counter()
        try:
            async with asyncio.timeout(rng.choice([0.0, 0.02, 0.2, 1.0])):
                async with self._http.stream("POST", path, json=body, headers=self._headers()) as response:
                    if response.status_code not in (200, 400):
                        self._record.fault("leave", response.status_code, (await response.aread()).decode())
                    async for _ in response.aiter_lines():
                        pass
        except TimeoutError:
            pass
        self._record.note("leave", "left", time.perf_counter() - begin)

    async def _half_a_body(self) -> None:
        """Promise a body and hang up in its middle."""
        url = self._http.base_url
        _, writer = await asyncio.open_connection(url.host, url.port)
        key = TENANTS[self._tenant]
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: 100\r\n\r\n"
        writer.write(head.encode() + b'{"prompt": [5')
        await writer.drain()
        await asyncio.sleep(self._rng.choice([0.0, 0.1]))
        writer.close()
        self._record.note("half a body", "left", 0.0)

    async def _too_long(self) -> None:
        if self._rng.random() < 0.3:
            body = {"prompt": "long " * 4_000_000, "max_tokens": 1}
            await self._ask("huge body", "/v1/completions", body, {(413, None)}, must_fail=True)
            return
        prompt = self._rng.choices(range(3, 400), k=self._rng.choice([2_048, 5_000]))
        await self._ask("too long", "/v1/completions", {"prompt": prompt, "max_tokens": 1}, TOO_LONG, must_fail=True)

    async def _wrong(self) -> None:
        good: dict[str, Any] = {"prompt": [5, 6], "max_tokens": 1}
        bad: list[tuple[dict[str, Any], int]] = [
            ({"model": "another"}, 404),
            ({"prompt": []}, 400),
            ({"prompt": [10**9]}, 400),
            ({"temperature": -1}, 400),
            ({"max_tokens": "many"}, 400),
            ({"cache_salt": ""}, 400),
            ({"n": 10**6}, 400),
        ]
        change, status = self._rng.choice(bad)
        if self._rng.random() < 0.2:
            await self._ask("wrong key", "/v1/completions", good, {(401, None)}, key="nobody", must_fail=True)
        else:
            await self._ask("wrong value", "/v1/completions", good | change, {(status, None)}, must_fail=True)

    async def _reset(self) -> None:
        await self._ask("reset", "/cache/reset", {}, set())

    async def _look(self) -> None:
        """Read the metrics: an operator may, and the slots add up."""
        response = await self._http.get("/metrics", headers=self._headers())
        wanted = 200 if self._tenant == OPERATOR else 403
        if response.status_code != wanted:
            self._record.fault("metrics", response.status_code, response.text)
            return
        self._record.note("metrics", str(wanted), 0.0)

    # -- asking ---------------------------------------------------------------------------------------------------

    async def _ask(
        self,
        action: str,
        path: str,
        body: dict[str, Any],
        expected: Refusals,
        *,
        key: str | None = None,
        must_fail: bool = False,
    ) -> dict[str, Any] | None:
        """Send a body and judge the answer; the reply's object, empty if it was streamed, None if it was refused.

        Args:
            expected: status and code (None for any) of refusals that are in order.
            must_fail: whether an answer is not.
        """
        begin = time.perf_counter()
        try:
            async with self._http.stream("POST", path, json=body, headers=self._headers(key)) as response:
                status, text = response.status_code, (await response.aread()).decode()
        except httpx.HTTPError as error:
            self._record.fault(action, 0, f"no answer: {error!r}")
            return None
        seconds = time.perf_counter() - begin
        if status == 200 and not must_fail:
            return self._answered(action, body, response.headers, text, seconds)
        refusal = json.loads(text).get("error", {})
        code, reason = refusal.get("code"), refusal.get("message", "")
        if {(status, code), (status, None)} & expected and len(reason) > 10:
            self._record.note(action, f"{status} {code or refusal.get('type')}", seconds)
            return None
        self._record.fault(action, status, text)
        return None

    def _answered(
        self, action: str, body: dict[str, Any], headers: httpx.Headers, text: str, seconds: float
    ) -> dict[str, Any]:
        cached, _, total = headers.get("x-cached-tokens", "0/0").partition("/")
        self._record.cached_tokens += int(cached)
        self._record.prompt_tokens += int(total)
        if not body.get("stream"):
            self._record.note(action, "whole", seconds)
            return dict(json.loads(text))
        if not any(line in ENDS for line in text.splitlines()[-4:]):
            self._record.fault(action, 200, "a stream without its end: …" + text[-400:])
        self._record.note(action, "streamed", seconds)
        return {}

    def _headers(self, key: str | None = None) -> dict[str, str]:
        return {"authorization": f"Bearer {key or TENANTS[self._tenant]}"}

    def _common(self, limit: str = "max_tokens") -> dict[str, Any]:
        rng = self._rng
        body: dict[str, Any] = {"model": self._model, limit: rng.choice([1, 8, 24, 60, 200])}
        body["stream"] = rng.random() < 0.5
        body["temperature"] = rng.choice([0, 1])
        return body

    def _wishes(self) -> dict[str, Any]:
        """What the client says of the future, as one of the APIs has it."""
        session = f"{self._tenant}-{self._rng.randrange(6)}"
        wishes: list[dict[str, Any]] = [
            {},
            {},
            {"prompt_cache_key": session},
            {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}},
            {"prompt_cache_retention": "24h"},
            {"cache_hints": {"session_id": session, "ttl": "5m", "priority": 2}},
            {"cache_hints": {"session_id": session, "expected_return_s": 2.0}},
            {"cache_hints": {"session_id": session, "end": True}},
        ]
        return self._rng.choice(wishes)

    def _text(self, fewest: int, most: int) -> str:
        return " ".join(self._rng.choices(WORDS, k=self._rng.randint(fewest, most)))


async def soak(url: str, model: str, seconds: float, seed: int, clients: int) -> Record:
    """Let so many clients at a server for some time; each then finishes what it has begun."""
    record = Record()
    deadline = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits, trust_env=False) as http:

        async def live(number: int) -> None:
            rng = random.Random(f"{seed}-{number}")
            client = Client(http, model, list(TENANTS)[number % len(TENANTS)], rng, record)
            while time.monotonic() < deadline:
                await client.act()

        await asyncio.gather(*(live(number) for number in range(clients)))
    return record


def main() -> int:
    """Be the clients, and say what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--model", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=12)
    arguments = parser.parse_args()
    record = asyncio.run(soak(arguments.url, arguments.model, arguments.seconds, arguments.seed, arguments.clients))
    json.dump(record.as_json(), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
