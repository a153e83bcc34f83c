"""A small client of the chat endpoint: streams one reply and measures when its first token came.

Speaks to any OpenAI-compatible server over HTTP; knows nothing of engines. Only httpx is needed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote

import httpx

from mainstem.errors import MainstemError


class Reply(NamedTuple):
    """One finished reply; token counts are the server's own.

    Attributes:
        text: the whole reply.
        prompt_tokens: length of the prompt.
        cached_tokens: how many of them the server did not have to compute.
        completion_tokens: length of the reply.
        ttft_s: seconds from sending the request to the first token.
        total_s: seconds from sending the request to the end of the reply.
        tool_calls: what it calls, in the form of Chat Completions.
    """

    text: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_s: float
    total_s: float
    tool_calls: tuple[dict[str, Any], ...] = ()

    @property
    def message(self) -> dict[str, Any]:
        """The reply as the assistant's message of the next request."""
        if not self.tool_calls:
            return {"role": "assistant", "content": self.text}
        return {"role": "assistant", "content": self.text or None, "tool_calls": list(self.tool_calls)}

    @property
    def prefilled_tokens(self) -> int:
        """Prompt tokens that were computed for this reply."""
        return self.prompt_tokens - self.cached_tokens


class ChatClient:
    """One connection to a server.

    Args:
        base_url: up to and including `/v1`.
        api_key: sent as a bearer token when given.
        model: name to ask for; by default the first that the server lists.

    Raises:
        MainstemError: from every method, when the server cannot be reached or refuses; the message says why.
    """

    def __init__(self, base_url: str, *, api_key: str | None = None, model: str | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        # A long prompt on a slow machine is silent for minutes before its first token: only connecting is timed.
        self._http = httpx.Client(headers=headers, timeout=httpx.Timeout(None, connect=5.0))
        self.model = self._first_model() if model is None else model

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        on_text: Callable[[str], object] | None = None,
        **fields: Any,
    ) -> Reply:
        """Stream the reply to `messages`, handing each piece to `on_text` as it arrives.

        Args:
            messages: the conversation.
            on_text: called with each piece of text.
            fields: further fields of the request body, such as `max_tokens` or `tools`. With `return_token_ids`, a
                first token that nothing can be told of yet, such as the first of a call, is seen too.
        """
        body = {
            "model": self.model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        pieces: list[str] = []
        calls: dict[int, dict[str, Any]] = {}
        usage: dict[str, Any] = {}
        ttft_s: float | None = None
        started = time.perf_counter()
        for event in self._events("/chat/completions", body):
            for choice in event["choices"]:
                delta = choice["delta"]
                text = delta.get("content") or ""
                if ttft_s is None and shows_a_token(choice):
                    ttft_s = time.perf_counter() - started
                pieces.append(text)
                for part in delta.get("tool_calls") or ():
                    _add_to_call(calls.setdefault(part["index"], {}), part)
                if text and on_text:
                    on_text(text)
            usage = event.get("usage") or usage
        total_s = time.perf_counter() - started
        details = usage.get("prompt_tokens_details") or {}
        return Reply(
            text="".join(pieces),
            prompt_tokens=usage.get("prompt_tokens", 0),
            cached_tokens=details.get("cached_tokens") or 0,
            completion_tokens=usage.get("completion_tokens", 0),
            ttft_s=total_s if ttft_s is None else ttft_s,
            total_s=total_s,
            tool_calls=tuple(calls[index] for index in sorted(calls)),
        )

    def explain(self, request_id: str) -> dict[str, Any]:
        """Why the tokens of a request's prompt were not cached, as the server tells; `last` for its latest one."""
        address = f"{self.base_url.removesuffix('/v1')}/cache/explain/{quote(request_id, safe='')}"
        try:
            response = self._http.get(address)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        self._check(response)
        told: dict[str, Any] = response.json()
        return told

    def _first_model(self) -> str:
        try:
            response = self._http.get(f"{self.base_url}/models")
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        self._check(response)
        name: str = response.json()["data"][0]["id"]
        return name

    def _events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        try:
            with self._http.stream("POST", self.base_url + path, json=body) as response:
                self._check(response)
                for line in response.iter_lines():
                    if not line.startswith("data:"):
                        continue
                    data = line.removeprefix("data:").strip()
                    if data == "[DONE]":
                        return
                    event: dict[str, Any] = json.loads(data)
                    if "error" in event:
                        raise MainstemError(f"the server gave up: {event['error']['message']}")
                    yield event
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _check(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        response.read()
        try:
            reason = response.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            reason = response.text.strip()[:200] or response.reason_phrase
        raise MainstemError(f"the server refused ({response.status_code}): {reason}")

    def _unreachable(self, error: httpx.HTTPError) -> MainstemError:
        return MainstemError(f"no answer from {self.base_url}: {error}; is 'mainstem serve' running there?")


def shows_a_token(choice: dict[str, Any]) -> bool:
    """Whether a streamed choice tells that a token came.

    The role alone comes before any token, and a first token may be half a character or the beginning of a call: without
    ids, only the end of the reply may show that there was one.
    """
    said = any(choice["delta"].get(field) for field in ("content", "reasoning_content", "tool_calls"))
    return said or bool(choice.get("token_ids") or choice["finish_reason"])


def _add_to_call(call: dict[str, Any], part: dict[str, Any]) -> None:
    """Join a streamed part of a call to what came of it before."""
    function = part.get("function") or {}
    if not call:
        call.update(id=part["id"], type="function", function={"name": function["name"], "arguments": ""})
    call["function"]["arguments"] += function.get("arguments") or ""
