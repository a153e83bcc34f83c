"""Four ways to lose a cache, each read where it shows: in explain, in the metrics, and in the SDKs of both APIs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import anthropic
import httpx
import openai
import pytest

from mainstem.config import EngineConfig, ServerConfig
from mainstem.engine import AsyncEngine
from mainstem.server import BackgroundServer
from tests.engine.support import kv_memory_for
from tests.server.conftest import MODEL, metric, wait_until

SYSTEM = (
    "You are a coding agent. Now it is {}. Read files before you change them, run the tests after every change, and "
    "answer in short sentences that anybody can follow."
)
QUESTION = "Find the river that runs to the sea, and say where it begins, how long it is and what it carries."
LONG = f"{QUESTION} And then do the same for each river that runs into it, however short it is."
TTL_S = 0.3
EXPIRED = 'mainstem_prefix_cache_evicted_tokens_total{reason="expired"}'
TENANTS = ("openai-1", "openai-2", "anthropic-1", "anthropic-2", "alice", "bob")


class Reply(NamedTuple):
    """What an SDK's user sees.

    Attributes:
        id: of the reply.
        uncached: prompt tokens that were computed.
        misses: these by cause.
        told: the word of the hosted diagnostics; None where they say that nothing was lost, or were not asked for.
    """

    id: str
    uncached: int
    misses: dict[str, int]
    told: str | None


class Ask(Protocol):
    """Sends a system text and a question, and names an earlier reply to compare with."""

    def __call__(
        self, server: BackgroundServer, system: str, question: str, *, key: str, after: str | None
    ) -> Reply: ...


def ask_openai(server: BackgroundServer, system: str, question: str, *, key: str, after: str | None) -> Reply:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
        create: Any = client.responses.create
        options = {} if after is None else {"prompt_cache_options": {"comparison_response_id": after}}
        said = create(model=MODEL, instructions=system, input=question, max_output_tokens=4, temperature=0, **options)
    found = said.prompt_cache_diagnostics
    told = None if found is None else getattr(found, "reason", None) or found.type
    usage = said.usage
    return Reply(said.id, usage.input_tokens - usage.input_tokens_details.cached_tokens, usage.mainstem["misses"], told)


def ask_anthropic(server: BackgroundServer, system: str, question: str, *, key: str, after: str | None) -> Reply:
    with anthropic.Anthropic(base_url=server.url, auth_token=key, max_retries=0) as client:
        said = client.messages.create(
            model=MODEL,
            system=system,
            messages=[{"role": "user", "content": question}],
            max_tokens=4,
            diagnostics={"previous_message_id": after},
        )
    found = None if said.diagnostics is None else said.diagnostics.cache_miss_reason
    usage: Any = said.usage
    uncached = usage.input_tokens + usage.cache_creation_input_tokens
    return Reply(said.id, uncached, usage.mainstem["misses"], None if found is None else found.type)


both = pytest.mark.parametrize(("who", "ask"), [("openai", ask_openai), ("anthropic", ask_anthropic)])


@contextmanager
def serving(folder: Path, *, keys: Path | None = None, **engine: Any) -> Iterator[BackgroundServer]:
    config = EngineConfig(model=str(folder), device="cpu", **{"kv_memory": "4MiB", **engine})
    served = ServerConfig(
        port=0, drain_seconds=0, served_model_name=MODEL, api_key_file=None if keys is None else str(keys)
    )
    with BackgroundServer(AsyncEngine.load(config), served) as running:
        yield running


class Watch:
    """What `/metrics` counts of a cause from now on, and what explain says of a reply."""

    def __init__(self, server: BackgroundServer, cause: str, key: str = "none") -> None:
        self._server, self._key = server, key
        self._line = f'mainstem_prefix_cache_misses_total{{cause="{cause}"}}'
        self._cause = cause
        with self._client() as http:
            self._before = metric(http, self._line)

    def check(self, reply: Reply) -> dict[str, Any]:
        """Both tell of the same tokens, as many as the reply did; what explain says of them."""
        with self._client() as http:
            told = http.get(f"/cache/explain/{reply.id}").json()
            counted = metric(http, self._line) - self._before
        card: dict[str, Any] = next(cause for cause in told["causes"] if cause["cause"] == self._cause)
        assert sum(cause["tokens"] for cause in told["causes"]) == told["uncached_tokens"] == reply.uncached
        assert card is told["causes"][0], "it is not the cause of most tokens"
        assert counted == card["tokens"]
        return {**card, "first_difference": told["first_difference"]}

    def _client(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {self._key}"}
        return httpx.Client(base_url=self._server.url, timeout=30, headers=headers)


@pytest.fixture(scope="module")
def idle(tiny_model: Path) -> Iterator[BackgroundServer]:
    with serving(tiny_model, cache_ttl=f"{TTL_S}s") as server:
        yield server


@both
def test_a_conversation_that_was_idle(idle: BackgroundServer, who: str, ask: Ask) -> None:
    system = SYSTEM.format(who)
    with httpx.Client(base_url=idle.url) as http:
        expired = metric(http, EXPIRED)
    first = ask(idle, system, QUESTION, key="none", after=None)
    watch = Watch(idle, "expired")
    with httpx.Client(base_url=idle.url) as http:
        wait_until(lambda: metric(http, EXPIRED) - expired >= first.uncached, seconds=20.0)
    again = ask(idle, system, QUESTION, key="none", after=first.id)
    assert again.told == "unavailable"
    assert again.misses == {"expired": again.uncached - 1, "rounding": 1}
    card = watch.check(again)
    assert card["reason"] == "expired"
    assert card["idle_seconds"] >= TTL_S
    assert card["first_difference"] is None


@pytest.fixture(scope="module")
def small(tiny_model: Path) -> Iterator[BackgroundServer]:
    pool: dict[str, Any] = {"kv_memory": kv_memory_for(400), "kv_dtype": "float32"}
    with serving(tiny_model, **pool, max_model_len=400, high_watermark=1.0) as server:
        yield server


@both
def test_a_pool_that_thrashes(small: BackgroundServer, who: str, ask: Ask) -> None:
    one, other = (SYSTEM.format(f"{who} {name}") for name in ("one", "two"))
    first = ask(small, one, f"one: {LONG}", key="none", after=None)
    ask(small, other, f"two: {LONG}", key="none", after=None)
    watch = Watch(small, "evicted")
    again = ask(small, one, f"one: {LONG}", key="none", after=first.id)
    assert again.told == "unavailable"
    assert max(again.misses, key=again.misses.__getitem__) == "evicted"
    card = watch.check(again)
    assert card["reason"] == "lru"
    assert card["room_for"]
    assert card["first_difference"] is None


@pytest.fixture(scope="module")
def two(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundServer]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("ops sk-ops operator\n" + "".join(f"{name} sk-{name}\n" for name in TENANTS), encoding="utf-8")
    with serving(tiny_model, keys=keys) as server:
        yield server


@both
def test_two_tenants(two: BackgroundServer, who: str, ask: Ask) -> None:
    """To its own tenant the prompt is new, and another's reply unknown; the operator is told whose it is."""
    system = SYSTEM.format(who)
    first = ask(two, system, QUESTION, key=f"sk-{who}-1", after=None)
    watch = Watch(two, "other_namespace", key="sk-ops")
    other = ask(two, system, QUESTION, key=f"sk-{who}-2", after=first.id)
    assert other.told in ("comparison_response_not_found", "previous_message_not_found")
    assert other.misses == {"first_seen": other.uncached}
    assert watch.check(other)["tokens"] == other.uncached - 1


@pytest.mark.parametrize(
    ("ask", "key", "told", "part"),
    [
        (ask_openai, "sk-alice", "input_changed", "instructions"),
        (ask_anthropic, "sk-bob", "system_changed", "system"),
    ],
    ids=["openai", "anthropic"],
)
def test_a_history_that_was_rewritten(two: BackgroundServer, ask: Ask, key: str, told: str, part: str) -> None:
    first = ask(two, SYSTEM.format(f"10:00:01 ({part})"), QUESTION, key=key, after=None)
    watch = Watch(two, "diverged", key="sk-ops")
    again = ask(two, SYSTEM.format(f"10:02:44 ({part})"), QUESTION, key=key, after=first.id)
    assert again.told == told
    assert max(again.misses, key=again.misses.__getitem__) == "diverged"
    card = watch.check(again)
    assert card["change"] == "timestamp"
    assert card["first_difference"]["part"] == card["first_difference"]["change"]["part"] == part
