"""A client of `/v1/completions` that measures: streams replies of any OpenAI-compatible server, and times their tokens.

Servers differ in what they take, so the first thing is to ask: whether prompts may be token ids and whether the ids of
replies can be had (only then is every token the same one for all servers), and whether fields beyond OpenAI's are
refused. Where ids are not to be had, prompts are text, a short word for each token of the workload.

It knows HTTP; it knows no workload, no order of calls and no report.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias

import httpx

from mainstem.errors import MainstemError

Prompt: TypeAlias = list[int] | str
"""Token ids or text, whichever the server takes."""

CONNECT_TIMEOUT_S = 5.0
# Shorter than servers keep an idle connection (uvicorn: 5 s), so that none is closed while a request goes out on it.
_KEEP_ALIVE_S = 1.0
_PROBE_TOKENS = 4

# Two letters and the space before them are one token in most vocabularies.
_WORDS = [first + second for first in "bcdfghklmnprstvwz" for second in "aeiou"]


class Dialect(NamedTuple):
    """How to speak to a server.

    Attributes:
        token_ids: whether prompts are token ids, and replies can be had as such; otherwise both are text.
        extensions: whether fields beyond OpenAI's may be sent; they make replies end at their length and nowhere else.
        streams_ids: whether the ids of a reply are in its stream; otherwise `/tokenize` is asked for them.
    """

    token_ids: bool
    extensions: bool
    streams_ids: bool


@dataclass(slots=True)
class Completion:
    """One reply, as far as it has come. Times are those of `time.perf_counter`.

    Attributes:
        sent: when it was asked for.
        token_times: when each token came; where the server does not tell tokens apart, when each piece of text came.
        text: what it says.
        token_ids: its token ids; empty in a dialect of text.
        prompt_tokens: length of the prompt as the server counts it; None where it does not say.
        completion_tokens: length of the reply as the server counts it, or what was counted here where it does not say.
        cached_tokens: prompt tokens that the server did not compute; None where it does not say.
    """

    sent: float
    token_times: list[float] = field(default_factory=list)
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int = 0
    cached_tokens: int | None = None

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.token_times[0] - self.sent

    @property
    def seconds_per_token(self) -> float | None:
        """Mean seconds between tokens after the first; None for a reply of one token."""
        later = self.completion_tokens - 1
        return (self.token_times[-1] - self.token_times[0]) / later if later > 0 else None


class CompletionsClient:
    """Asks one server. Use it in an `async with` block, which finds out how the server wants to be asked.

    Args:
        base_url: up to and including `/v1`.
        model: name to ask for; None for the first that the server lists.
        api_key: sent as a bearer token when given.
        connections: most requests at once; more wait here, which counts for none of their times.
        silence_s: a server that sends nothing for as long as this has failed.

    Attributes:
        model: the name that is asked for.
        context: longest prompt and reply together that the server says it serves; None where it does not.
        dialect: how it is spoken to.

    Raises:
        MainstemError: from every method, when the server cannot be reached or refuses; the message says why.
    """

    model: str
    context: int | None
    dialect: Dialect

    def __init__(
        self, base_url: str, *, model: str | None, api_key: str | None, connections: int, silence_s: float
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._wanted = model
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(silence_s, connect=CONNECT_TIMEOUT_S, pool=None),
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=connections, keepalive_expiry=_KEEP_ALIVE_S
            ),
        )
        self._turns = asyncio.Semaphore(connections)

    async def __aenter__(self) -> Self:
        try:
            listed = await self._models()
            self.model = self._choose(listed)
            self.context = next((_context(entry) for entry in listed if entry.get("id") == self.model), None)
            self.dialect = await self._find_dialect()
        except BaseException:
            await self._http.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._http.aclose()

    def prompt(self, tokens: Sequence[int]) -> Prompt:
        """Tokens of a workload, as this server is to be given them."""
        if self.dialect.token_ids:
            return list(tokens)
        return "".join(f" {_WORDS[token % len(_WORDS)]}" for token in tokens)

    def extend(self, prompt: Prompt, reply: Completion, tokens: Sequence[int]) -> Prompt:
        """A prompt and its reply, continued."""
        if isinstance(prompt, str):
            return prompt + reply.text + str(self.prompt(tokens))
        return [*prompt, *reply.token_ids, *tokens]

    async def complete(self, prompt: Prompt, max_tokens: int) -> Completion:
        """Stream one greedy reply, as long as was asked for wherever the server can be told so."""
        async with self._turns:
            reply = await self._stream(prompt, max_tokens, extensions=self.dialect.extensions)
        if not reply.token_times:
            raise MainstemError(f"{self.base_url} ended a reply without a token")
        if self.dialect.token_ids and not self.dialect.streams_ids:
            reply.token_ids = await self._tokenize(reply.text)
        return reply

    async def _find_dialect(self) -> Dialect:
        """Ask one short question in every way until one is answered; the first that is, is the best."""
        refusals: list[_Refused] = []
        for prompt in ([64] * _PROBE_TOKENS, "one two three four"):
            for extensions in (True, False):
                try:
                    reply = await self._stream(prompt, _PROBE_TOKENS, extensions=extensions)
                except _Refused as refused:
                    refusals.append(refused)
                    continue
                if isinstance(prompt, str) or not await self._has_ids(reply):
                    return Dialect(token_ids=False, extensions=extensions, streams_ids=False)
                return Dialect(token_ids=True, extensions=extensions, streams_ids=bool(reply.token_ids))
        raise refusals[0]

    async def _has_ids(self, reply: Completion) -> bool:
        """Whether the ids of a reply can be had at all."""
        if reply.token_ids:
            return True
        try:
            await self._tokenize(" one")
        except MainstemError:
            return False
        return True

    async def _stream(self, prompt: Prompt, max_tokens: int, *, extensions: bool) -> Completion:
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if extensions:
            body |= {"ignore_eos": True, "min_tokens": max_tokens, "return_token_ids": True}
        reply = Completion(time.perf_counter())
        async for event in self._events("/completions", body):
            _take(event, reply)
        reply.completion_tokens = reply.completion_tokens or len(reply.token_times)
        return reply

    async def _events(self, path: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        try:
            async with self._http.stream("POST", self.base_url + path, json=body) as response:
                if not response.is_success:
                    await response.aread()
                self._check(response)
                async for line in response.aiter_lines():
                    if not line.startswith("data:"):
                        continue
                    data = line.removeprefix("data:").strip()
                    if data == "[DONE]":
                        continue
                    event = self._parse(data)
                    if event.get("error"):
                        raise MainstemError(f"{self.base_url} gave up: {_reason(event) or data[:200]}")
                    yield event
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    async def _models(self) -> list[dict[str, Any]]:
        try:
            response = await self._http.get(f"{self.base_url}/models")
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if response.status_code in (404, 405):
            raise MainstemError(
                f"there is no {self.base_url}/models; is it an OpenAI-compatible server, and does its URL end in /v1?"
            )
        self._check(response)
        listed = self._parse(response.text).get("data")
        return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []

    def _choose(self, listed: Sequence[dict[str, Any]]) -> str:
        if self._wanted is not None:
            return self._wanted
        if not listed:
            raise MainstemError(f"{self.base_url} lists no model; name one with --model")
        return str(listed[0].get("id"))

    async def _tokenize(self, text: str) -> list[int]:
        """The token ids of a text, from a route that is not OpenAI's but that several servers have."""
        root = self.base_url.removesuffix("/v1")
        # One server calls the text a prompt, another one content.
        body = {"model": self.model, "prompt": text, "content": text, "add_special_tokens": False, "add_special": False}
        try:
            response = await self._http.post(f"{root}/tokenize", json=body)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        self._check(response)
        tokens = self._parse(response.text).get("tokens")
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise MainstemError(f"{root}/tokenize gave no token ids")
        return tokens

    def _parse(self, text: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise MainstemError(f"{self.base_url} sent something that is not a JSON object: {text[:80]!r}")
        return value

    def _check(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        try:
            reason = _reason(response.json())
        except ValueError:
            reason = None
        told = reason or response.text.strip()[:200] or response.reason_phrase
        raise _Refused(f"{self.base_url} refused ({response.status_code}): {told}")

    def _unreachable(self, error: httpx.HTTPError) -> MainstemError:
        if isinstance(error, httpx.ReadTimeout):
            return MainstemError(
                f"{self.base_url} sent nothing for {self._http.timeout.read:g} s; "
                "a slow server may need a longer --timeout"
            )
        return MainstemError(f"no answer from {self.base_url}: {error or type(error).__name__}; is the server running?")


class _Refused(MainstemError):
    """The server answered with an HTTP error."""


def _take(event: dict[str, Any], reply: Completion) -> None:
    """Add one event of a stream to a reply."""
    now = time.perf_counter()
    for choice in event.get("choices") or ():
        text, ids = choice.get("text") or "", choice.get("token_ids") or []
        reply.text += text
        reply.token_ids += ids
        # A token may have no text yet; where ids are not told, only the end of the reply shows that there was one.
        unseen = not text and choice.get("finish_reason") is not None and not reply.token_times
        reply.token_times += [now] * (len(ids) or int(bool(text) or unseen))
    usage = event.get("usage")
    if usage:
        reply.prompt_tokens = usage.get("prompt_tokens")
        reply.completion_tokens = usage.get("completion_tokens") or 0
        details = usage.get("prompt_tokens_details") or {}
        reply.cached_tokens = details.get("cached_tokens", usage.get("cached_tokens"))


def _context(entry: dict[str, Any]) -> int | None:
    """The longest context of a listed model, under the names that servers have for it."""
    value = entry.get("max_model_len") or (entry.get("meta") or {}).get("n_ctx")
    return value if isinstance(value, int) else None


def _reason(answer: Any) -> str | None:
    """What an error says of itself, in the forms that servers give it."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail")
    return str(error)[:500] if error else None
