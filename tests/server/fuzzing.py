"""Bodies that are almost right, sent to every endpoint: what comes back must be an answer or a refusal with a reason.

A body that can be served is changed in one to four places: a value is replaced by an odd one, taken away, wrapped,
repeated, or given the wrong name. `python -m tests.server.fuzzing --requests 20000 --seed 7` sends more than the tests.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.server import BackgroundServer
from tests.server.tools import CHAT_TOOLS, MESSAGES_TOOLS, RESPONSES_TOOLS, SCHEMA
from tests.support.tiny_models import make_tiny_model

TIMEOUT_S = 30.0
HISTORY: list[Any] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "the weather"}, {"type": "text", "text": "in Rome"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    {"role": "user", "content": "and?"},
]
SAMPLING: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "seed": 3, "stop": ["zz"], "cache_salt": "s"}
CHAT: dict[str, Any] = {
    "messages": HISTORY,
    "max_tokens": 3,
    "n": 2,
    "tools": CHAT_TOOLS,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "logprobs": True,
    "top_logprobs": 2,
    "stream_options": {"include_usage": True},
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "explicit", "ttl": "30m"},
    **SAMPLING,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [CHAT, {"messages": HISTORY, "max_tokens": 8, "response_format": FORMAT, "stream": True}],
    "/v1/chat/completions/render": [CHAT],
    "/v1/completions": [
        {"prompt": "the river", "max_tokens": 3, "n": 2, "best_of": 3, "logprobs": 2, "echo": False, **SAMPLING},
        {"prompt": [[5, 6, 7], [8]], "max_tokens": 3, "stop_token_ids": [3], "return_token_ids": True, "stream": True},
    ],
    "/v1/responses": [
        {
            "model": "tiny",
            "instructions": "be brief",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
                {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "noon"},
            ],
            "tools": RESPONSES_TOOLS,
            "text": {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA}},
            "max_output_tokens": 8,
            "metadata": {"a": "b"},
            "reasoning": {"effort": "low"},
            "include": [],
            "store": True,
        }
    ],
    "/v1/messages": [
        {
            "model": "tiny",
            "max_tokens": 3,
            "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
            "messages": [
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "now", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "noon"}]},
            ],
            "tools": MESSAGES_TOOLS,
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "stop_sequences": ["zz"],
            "stream": True,
        }
    ],
    "/v1/messages/count_tokens": [{"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}],
    "/tokenize": [{"prompt": "the river", "add_special_tokens": True}, {"messages": HISTORY, "tools": CHAT_TOOLS}],
    "/detokenize": [{"tokens": [5, 6, 7]}],
    "/cache/reset": [{}],
}
ODD: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**63,
    -(2**70),
    10**40,
    0.5,
    -1e308,
    "",
    " ",
    "x",
    "\x00",
    "\u202e🌳" * 3,
    "<|im_end|><|im_start|>system\n",
    "{{ messages }}{% for %}",
    "auto",
    "user",
    "1h",
    [],
    {},
    [[]],
    [None],
    [{}],
    {"type": "text"},
    {"": {"": ""}},
    {"$ref": "#"},
    "long " * 2000,
    ["a"] * 300,
    list(range(300)),
]


class Failure(NamedTuple):
    """An answer that should not have been given."""

    path: str
    body: dict[str, Any]
    status: int
    said: str


def mutate(rng: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    """A copy that differs in one to four places."""
    changed: Any = copy.deepcopy(body)
    for _ in range(rng.randint(1, 4)):
        places = list(_places(changed))
        if not places:
            break
        container, key = rng.choice(places)
        _change(rng, container, key)
    return dict(changed)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place within a JSON value: the object or list, and the key or index in it."""
    pending = [value]
    while pending:
        container = pending.pop()
        keys = list(container) if isinstance(container, dict) else range(min(len(container), 20))
        for key in keys:
            yield container, key
            if isinstance(container[key], dict | list):
                pending.append(container[key])


def _change(rng: random.Random, container: Any, key: Any) -> None:
    match rng.randrange(8):
        case 0:
            del container[key]
        case 1:
            container[key] = [container[key]]
        case 2:
            container[key] = {"value": container[key], "type": "text"}
        case 3 if isinstance(container, dict):
            container[rng.choice(["", "type", "role", "content", "name", "\ud7ff", "x" * 500])] = container.pop(key)
        case 4 if isinstance(container, list):
            container.extend([container[key]] * rng.choice([1, 2, 200]))
        case 5:
            container[key] = json.dumps(container[key])
        case 6:
            for _ in range(rng.choice([3, 60])):
                container[key] = {"properties": container[key]} if rng.random() < 0.5 else [container[key]]
        case _:
            container[key] = copy.deepcopy(rng.choice(ODD))


class Outcome(NamedTuple):
    """How often each path answered with each status, and what should not have been."""

    statuses: Counter[tuple[str, int]]
    failures: list[Failure]


async def fuzz(url: str, requests: int, seed: int, *, at_once: int = 8) -> Outcome:
    """Send so many bodies."""
    rng = random.Random(seed)
    statuses: Counter[tuple[str, int]] = Counter()
    failures: list[Failure] = []
    todo = [(path, mutate(rng, rng.choice(BODIES[path]))) for path in rng.choices(list(BODIES), k=requests)]

    async def work(http: httpx.AsyncClient) -> None:
        while todo:
            path, body = todo.pop()
            _keep_short(body)
            try:
                response = await http.post(path, content=json.dumps(body).encode(), headers=_JSON)
            except httpx.HTTPError as error:
                failures.append(Failure(path, body, 0, repr(error)))
                continue
            statuses[path, response.status_code] += 1
            if reason := _fault(path, response):
                failures.append(Failure(path, body, response.status_code, f"{reason}: {response.text[:300]}"))

    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False) as http:
        await asyncio.gather(*(work(http) for _ in range(at_once)))
    return Outcome(statuses, failures)


_JSON = {"content-type": "application/json"}


def _keep_short(body: dict[str, Any]) -> None:
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of"):
        if isinstance(body.get(name), int):
            body[name] = min(body[name], 8)


def _fault(path: str, response: httpx.Response) -> str | None:
    """What is wrong with an answer."""
    if response.status_code >= 500:
        return "an error of the server"
    if "Traceback" in response.text or "pydantic" in response.text:
        return "it shows the inside"
    if response.status_code == 200:
        return "a stream that failed" if "server_error" in response.text else None
    error = response.json().get("error", {})
    said = error.get("message", "")
    if not 10 < len(said) < 700:
        return "a refusal without a reason"
    if not path.startswith("/v1/messages") and set(error) != {"message", "type", "param", "code"}:
        return "a refusal of another form"
    return None


def main() -> int:
    """Fuzz a server of this process, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "tiny")
        engine = AsyncEngine.load(EngineConfig(model=str(model), kv_memory="4MiB", device="cpu"))
        config = ServerConfig(port=0, drain_seconds=0, served_model_name="tiny", default_max_tokens=4)
        with BackgroundServer(engine, config) as server:
            statuses, failures = asyncio.run(fuzz(server.url, arguments.requests, arguments.seed))
            asyncio.run(engine.check_integrity())
            protected = engine.stats().cache.protected
    for (path, status), times in sorted(statuses.items()):
        sys.stdout.write(f"{path:32} {status} {times:6}\n")
    for failure in failures[:20]:
        sys.stdout.write(f"\n{failure.path} {failure.status} {failure.said}\n{json.dumps(failure.body)[:600]}\n")
    sys.stdout.write(f"\n{len(failures)} failures, {protected} slots still protected\n")
    return 1 if failures or protected else 0


if __name__ == "__main__":
    sys.exit(main())
