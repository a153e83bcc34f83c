"""What the benchmarks share: a real server in a process of its own, timed streams, and results with their origin."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import httpx
import numpy as np

from mainstem.bench.origin import origin

START_TIMEOUT_S = 300.0
TokenList = list[int]
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Stream:
    """One streamed reply: when it was asked for, when each token came, and the usage at its end."""

    sent_at: float = 0.0
    token_times: list[float] = field(default_factory=list)
    token_ids: TokenList = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.token_times[0] - self.sent_at

    @property
    def gaps(self) -> list[float]:
        """Seconds between tokens."""
        return [b - a for a, b in zip(self.token_times, self.token_times[1:], strict=False)]

    @property
    def cached(self) -> int:
        """Prompt tokens that came from the cache."""
        return int(self.usage["prompt_tokens_details"]["cached_tokens"])


@contextmanager
def server(*options: str) -> Iterator[str]:
    """`mainstem serve` on a free port, as a user would start it; yields its base URL and stops it at the end."""
    command = [sys.executable, "-m", "mainstem", "serve", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield _base_url(process)
    finally:
        process.terminate()
        process.wait(timeout=60)


def _base_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    said: list[str] = []
    deadline = time.monotonic() + START_TIMEOUT_S
    for line in process.stdout:
        said.append(line)
        found = re.search(r"http://[\d.]+:\d+", line)
        if found:
            _wait_until_healthy(found.group(), deadline)
            return found.group()
    raise RuntimeError("the server did not start:\n" + "".join(said))


def _wait_until_healthy(url: str, deadline: float) -> None:
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise RuntimeError(f"{url} is not healthy")


@asynccontextmanager
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client without time limits."""
    limits = httpx.Limits(max_connections=256)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits, trust_env=False) as http:
        yield http


async def complete(
    http: httpx.AsyncClient, prompt: Sequence[int], max_tokens: int, *, into: Stream | None = None, **options: Any
) -> Stream:
    """Stream a greedy completion of token ids through `/v1/completions`.

    Given `into`, what has come so far can be read there even if this is cancelled.
    """
    body = {
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        **options,
    }
    stream = into or Stream()
    stream.sent_at = time.perf_counter()
    async with http.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError((await response.aread()).decode())
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                stream.usage = event["usage"]
            for choice in event["choices"]:
                new = choice.get("token_ids") or []
                stream.token_times += [time.perf_counter()] * len(new)
                stream.token_ids += new
    return stream


async def complete_all(http: httpx.AsyncClient, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Stream]:
    """Several completions at the same time."""
    return list(await asyncio.gather(*(complete(http, prompt, max_tokens) for prompt in prompts)))


def random_prompt(rng: np.random.Generator, n: int) -> TokenList:
    """Token ids of no meaning, none of them special in the embedded model's vocabulary."""
    ids: TokenList = rng.integers(100, 40_000, n).tolist()
    return ids


def timed(times: list[int], call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call, append the nanoseconds it took, and return its result."""
    begin = time.perf_counter_ns()
    result = call(*args, **kwargs)
    times.append(time.perf_counter_ns() - begin)
    return result


def median_us(times: Sequence[int]) -> float:
    """The median of some nanoseconds, in microseconds."""
    return statistics.median(times) / 1e3


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Median and range of repeated measurements."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "repeats": len(values)}


def keep(out: Path | None, figures: dict[str, Any]) -> None:
    """Write the figures to a file, with the command and the machine they come from."""
    if out is None:
        return
    command = ["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({**origin(command), **figures}, indent=2) + "\n")
