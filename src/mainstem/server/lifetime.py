"""What a request says about how long its prompt is worth keeping, in the fields and headers of any API.

Three ways to say the same: our own `cache_hints`, OpenAI's `prompt_cache_key`, `prompt_cache_options` and
`prompt_cache_breakpoint`, Anthropic's `cache_control`. They are wishes, and none of them changes a prompt or a reply.
What becomes of them is the business of the prefix cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ConfigDict

from mainstem.config import parse_duration
from mainstem.errors import ConfigError, InvalidRequest
from mainstem.server.validation import Body
from mainstem.tokens.markers import CACHE_CONTROL, OPENAI_TTLS, read_marker, read_ttl
from mainstem.tree import CacheHints, Keep, Retention
from mainstem.tree.hints import LIFETIMES
from mainstem.wording import json_value, one_of

if TYPE_CHECKING:
    from mainstem.server.prompts import Prompt

MAX_ID_CHARACTERS = 256
OPENAI_TTL = OPENAI_TTLS[0]
_MODES = ("implicit", "explicit")
_RETENTIONS = ("in_memory", "in-memory", "24h")  # older versions of the SDK write the hyphen
_YES, _NO = ("1", "true"), ("0", "false")


class HintsBody(Body):
    """`cache_hints`: what other APIs have no fields for. It is ours alone, so what is unknown here is a mistake."""

    model_config = ConfigDict(extra="forbid")

    session_id: str | None = None
    end: bool | None = None
    expected_return_s: float | None = None
    ttl: str | None = None
    priority: int | None = None


class OptionsBody(Body):
    """`prompt_cache_options`, as OpenAI has it."""

    mode: str | None = None
    ttl: str | None = None
    prewarm: bool | None = None
    comparison_response_id: str | None = None


class LifetimeBody(Body):
    """The fields that every API takes here."""

    cache_hints: HintsBody | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: OptionsBody | None = None
    prompt_cache_retention: str | None = None
    cache_control: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """What one request says.

    Attributes:
        session: the conversation that it belongs to.
        source: whose word it is: what one key's clients say is believed or not together.
        ends: nothing will follow in this session.
        expected_return_s: in how many seconds the next request will come.
        ttl_s: how long the whole prompt is to be kept; None for no longer than others.
        breakpoint_ttl: of breakpoints that do not say it.
        priority: of all that is to be kept, 0 to 2.
        prewarm: compute the prompt and generate nothing.
    """

    session: str | None = None
    source: str = ""
    ends: bool = False
    expected_return_s: float | None = None
    ttl_s: float | None = None
    breakpoint_ttl: str = OPENAI_TTL
    priority: int = 1
    prewarm: bool = False

    def hints(self, prompt: Prompt) -> CacheHints:
        """What the engine is told of one prompt.

        Raises:
            InvalidRequest: when a breakpoint's time is none.
        """
        keeps = [
            Keep(mark.length, Retention.of(_seconds(mark.ttl or self.breakpoint_ttl, "ttl"), self.priority))
            for mark in prompt.breakpoints
        ]
        if self.ttl_s is not None:
            keeps.append(Keep(len(prompt.ids), Retention.of(self.ttl_s, self.priority)))
        return CacheHints(self.session, self.ends, self.expected_return_s, tuple(keeps), self.source)


NO_WISHES = Lifetime()


def read_lifetime(body: LifetimeBody, headers: Mapping[str, str]) -> Lifetime:
    """What a request's body and headers say; the body wins.

    Raises:
        InvalidRequest: naming the field that is wrong.
    """
    said = body.cache_hints or HintsBody()
    session = _identifier(said.session_id, "cache_hints.session_id") or _identifier(
        headers.get("x-session-id"), "x-session-id"
    )
    key = _identifier(body.prompt_cache_key, "prompt_cache_key")
    returns = _wait(said.expected_return_s, "cache_hints.expected_return_s")
    if returns is None:
        returns = _wait(_number(headers.get("x-expected-return-s"), "x-expected-return-s"), "x-expected-return-s")
    if said.priority is not None and not 0 <= said.priority <= 2:
        param = "cache_hints.priority"
        raise InvalidRequest(f"{param} must be 0, 1 or 2, got {said.priority}", param=param)
    options = body.prompt_cache_options or OptionsBody()
    _check_choice(options.mode, _MODES, "prompt_cache_options.mode")
    _check_choice(body.prompt_cache_retention, _RETENTIONS, "prompt_cache_retention")
    if options.ttl is not None:
        read_ttl("prompt_cache_options.ttl", options.ttl, OPENAI_TTLS)
    marked = None if body.cache_control is None else read_marker("cache_control", body.cache_control, CACHE_CONTROL)
    named = session_name(session, key)
    return Lifetime(
        session=named,
        source=key or "",
        ends=_ends(said.end, headers.get("x-session-end"), named),
        expected_return_s=returns,
        ttl_s=_whole_ttl(body, said, options, marked),
        breakpoint_ttl=options.ttl or OPENAI_TTL,
        priority=1 if said.priority is None else said.priority,
        prewarm=bool(options.prewarm),
    )


def session_name(session: str | None, key: str | None) -> str | None:
    """How a session is called that names itself, or that only its `prompt_cache_key` names."""
    return session or (None if key is None else f"key {key}")


class Written(NamedTuple):
    """Tokens that a request has written to the cache, by how long they are wanted there."""

    short: int
    long: int


def split_written(prompt: Prompt, lifetime: Lifetime, cached: int, written: int, *, long_s: float) -> Written:
    """Which of the tokens after the first `cached` ones are wanted for `long_s` seconds or more."""
    long = [keep.length for keep in lifetime.hints(prompt).keep if keep.retention.ttl_s >= long_s]
    for_long = min(max(max(long, default=0) - cached, 0), written)
    return Written(written - for_long, for_long)


def _ends(said: bool | None, header: str | None, session: str | None) -> bool:
    """Whether a session is over, by the body or by a header."""
    switched = _switch(header, "x-session-end")
    ends, param = (switched, "x-session-end") if said is None else (said, "cache_hints.end")
    if ends and session is None:
        raise InvalidRequest(
            f"{param} ends no session: name it in cache_hints.session_id, the header x-session-id or prompt_cache_key",
            param=param,
        )
    return ends


def _whole_ttl(body: LifetimeBody, said: HintsBody, options: OptionsBody, marked: str | None) -> float | None:
    """How long the whole prompt is to be kept, in seconds; `marked` is the time of the request's own marker."""
    if said.ttl is not None:
        return _seconds(said.ttl, "cache_hints.ttl")
    if marked is not None:
        return _seconds(marked, "cache_control.ttl")
    # Options that only compare requests, or name nothing, ask for no time.
    if options.mode != "explicit" and (options.ttl or options.mode or options.prewarm):
        return _seconds(options.ttl or OPENAI_TTL, "prompt_cache_options.ttl")
    if body.prompt_cache_retention == "24h":
        return _seconds("24h", "prompt_cache_retention")
    return None


def _seconds(text: str, param: str) -> float:
    try:
        seconds = parse_duration(text)
    except ConfigError:
        seconds = math.inf
    if seconds > LIFETIMES[-1]:
        why = f"must be a time of at most 24h, such as 90s, 15m or 1h, got {json_value(text)}"
        raise InvalidRequest(f"{param} {why}; nothing is retained for longer", param=param)
    return seconds


def _check_choice(value: str | None, choices: tuple[str, ...], param: str) -> None:
    if value is not None and value not in choices:
        raise InvalidRequest(f"{param} must be {one_of(choices)}, got {json_value(value)}", param=param)


def _identifier(text: str | None, param: str) -> str | None:
    if text is None:
        return None
    if not 1 <= len(text) <= MAX_ID_CHARACTERS:
        raise InvalidRequest(f"{param} must have 1 to {MAX_ID_CHARACTERS} characters", param=param)
    return text


def _number(text: str | None, param: str) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidRequest(f"{param} must be a number of seconds", param=param) from None


def _wait(seconds: float | None, param: str) -> float | None:
    if seconds is not None and not 0 <= seconds <= 366 * 86400:
        raise InvalidRequest(f"{param} must be a number of seconds, 0 to a year", param=param)
    return seconds


def _switch(text: str | None, param: str) -> bool:
    if text is None:
        return False
    value = text.strip().lower()
    if value in _YES or value in _NO:
        return value in _YES
    raise InvalidRequest(f"{param} must be true or false, got {json_value(text)}", param=param)
