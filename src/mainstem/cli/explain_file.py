"""Requests from a file, played through a prefix cache and its records without a model.

Each line is a request's body, of Chat Completions, Responses or Messages, or with a plain `prompt`. What the model
replied is taken from the next request that goes on with the conversation.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mainstem.diagnosis.bodies import is_anthropic
from mainstem.errors import ConfigError, InvalidRequest
from mainstem.explain import MissCause, Origin, Record, Recorder
from mainstem.explain.diagnosis import FirstDifference, first_difference
from mainstem.explain.report import explanation
from mainstem.params import SamplingParams
from mainstem.scheduler import Request, Scheduler
from mainstem.tokens import Conversation, Message, Tokenizer, anthropic, responses
from mainstem.tokens.chat import add_message, check_any, places_of, read_tools
from mainstem.tokens.placed import Placed, Places
from mainstem.tokens.reading import read_on
from mainstem.tools import Dialect
from mainstem.tools.reading import read_reply
from mainstem.tree import RadixCache, TokenArray, common_length
from mainstem.tree.hints import CacheHints
from mainstem.wording import json_fault

STEP_TOKENS = 8192


class _Line(NamedTuple):
    """One request of the file.

    Attributes:
        number: of its line.
        conversation: None for a plain prompt.
        places: where its texts stand in the body.
        tokens: int32[n], its prompt.
        key: its `prompt_cache_key`.
        hints: its session, by `cache_hints` or its key, and whether that ends.
    """

    number: int
    conversation: Conversation | None
    places: Places | None
    tokens: TokenArray
    key: str | None
    hints: CacheHints


def explain_file(path: Path, model: str, pool_tokens: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """For each request of a file, the number of its line and what `GET /cache/explain/{id}` would say of it.

    Args:
        path: of the file.
        model: whose tokenizer and chat template are used.
        pool_tokens: size of the pool.

    Raises:
        MainstemError: when the file or a line of it cannot be used, or a prompt does not fit the pool.
    """
    from mainstem.model import resolve_model
    from mainstem.server.parts import parts_of

    if model == "none":
        raise ConfigError("--model none: causes are counted in tokens, so it needs the tokenizer of a model")
    tokenizer = Tokenizer.load(resolve_model(model).folder)
    lines = [_read(number, text, tokenizer) for number, text in _texts(path)]
    _require_room(lines, pool_tokens)
    cache = RadixCache(pool_tokens)
    recorder = Recorder(cache, len(lines))
    scheduler = Scheduler(cache, max_num_batched_tokens=STEP_TOKENS, max_num_seqs=1, max_model_len=pool_tokens)
    scheduler.observer = recorder
    dialect = Dialect(tokenizer)
    for i, line in enumerate(lines):
        record = _play(line, _reply(line, lines[i + 1 :], tokenizer), scheduler)
        difference = _difference(record, line, tokenizer, dialect)
        parts = parts_of(recorder.tokens_of(record), record.num_prompt, line.conversation, tokenizer, line.places)
        told = explanation(record, difference=difference, parts=parts, in_confidence=True, same_tenant=lambda _: True)
        yield line.number, told


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    try:
        lines = (sys.stdin.read() if path == Path("-") else path.read_text(encoding="utf-8")).split("\n")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file; it should have one body in JSON on each line") from None
    found = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise ConfigError(f"{path} has no requests; it should have one body in JSON on each line")
    return iter(found)


def _require_room(lines: Sequence[_Line], pool_tokens: int) -> None:
    """Refuse a pool that cannot hold the longest prompt and a token of its reply."""
    longest = max(lines, key=lambda line: len(line.tokens))
    needed = len(longest.tokens) + 1
    if needed > pool_tokens:
        raise ConfigError(
            f"--pool-tokens {pool_tokens} is too small for the prompt of line {longest.number}, "
            f"which needs a pool of {needed} tokens"
        )


def _read(number: int, text: str, tokenizer: Tokenizer) -> _Line:
    try:
        body = json.loads(text)
        if not isinstance(body, dict):
            raise InvalidRequest("a request's body is a JSON object")
        key, hints = _groups(body)
        if isinstance(body.get("prompt"), str):
            return _Line(number, None, None, tokenizer.encode_prompt(body["prompt"]), key, hints)
        conversation, places = _conversation(body)
        tokens = tokenizer.encode(tokenizer.chat.render(conversation))
        return _Line(number, conversation, places, tokens, key, hints)
    except RecursionError:
        why = "it is nested too deeply"
    except json.JSONDecodeError as error:
        why = f"it is not JSON: {json_fault(error)}"
    except (ValueError, InvalidRequest) as error:
        why = str(error)
    raise ConfigError(f"line {number} is no request to explain: {why}")


def _groups(body: dict[str, Any]) -> tuple[str | None, CacheHints]:
    """The key of a request, and what it says of its session, as a server reads them."""
    from pydantic import ValidationError

    from mainstem.server.lifetime import LifetimeBody, read_lifetime
    from mainstem.server.validation import fault_of

    try:
        said = LifetimeBody.model_validate({name: body[name] for name in LifetimeBody.model_fields if name in body})
    except ValidationError as error:
        raise InvalidRequest(fault_of(error.errors(include_url=False)[0])) from None
    lifetime = read_lifetime(said, {})
    return said.prompt_cache_key, CacheHints(lifetime.session, lifetime.ends, source=lifetime.source)


def _conversation(body: dict[str, Any]) -> tuple[Conversation, Places | None]:
    """What a body of Chat Completions, Messages or Responses asks to be continued."""
    tools = body.get("tools")
    if "input" in body:
        placed, offered = responses.read_input(body["input"]), responses.read_tools(tools)
        instructions = body.get("instructions")
        if isinstance(instructions, str):
            head = Message(role="system", parts=(instructions,))
            placed = (Placed(head, "instructions", ("instructions",)), *placed)
        return Conversation(tuple(each.message for each in placed), offered), Places(placed)
    messages = body.get("messages") or ()
    if is_anthropic(body):
        placed = anthropic.read_messages(body.get("system"), messages)
        return Conversation(tuple(each.message for each in placed), anthropic.read_tools(tools)), Places(placed)
    check_any(messages)
    said = read_on(messages, add_message).messages
    return Conversation(tuple(each.message for each in said), read_tools(tools)), places_of(said)


def _reply(line: _Line, later: Sequence[_Line], tokenizer: Tokenizer) -> TokenArray:
    """The tokens that the model said, as far as the next request of the conversation tells."""
    before = line.conversation
    if before is None:
        return np.empty(0, np.int32)
    length = len(before.messages)
    for other in later:
        after = other.conversation
        if after is None or len(after.messages) <= length or after.messages[length].role != "assistant":
            continue
        if after.messages[:length] == before.messages:
            answered = Conversation(after.messages[: length + 1], before.tools)
            text = tokenizer.chat.render(answered, add_generation_prompt=False)
            whole = tokenizer.encode(text.rstrip())
            # One that the template renders otherwise in the history cannot be told from its rendering.
            return whole[len(line.tokens) :] if common_length(whole, line.tokens) == len(line.tokens) else whole[:0]
    return np.empty(0, np.int32)


def _play(line: _Line, reply: TokenArray, scheduler: Scheduler) -> Record:
    """Have the scheduler run a request that is answered with these tokens."""
    origin = Origin(
        id=f"line {line.number}",
        session=line.hints.session,
        key=line.key,
        conversation=line.conversation,
        places=line.places,
    )
    request = Request(
        origin.id, line.tokens, SamplingParams(), max_tokens=max(1, len(reply)), hints=line.hints, origin=origin
    )
    scheduler.add(request)
    said = reply.tolist() or [0]
    while request.num_generated < len(said):
        output = scheduler.schedule()
        scheduler.commit(output)
        if output.sources:
            request.tokens.append(said[request.num_generated])
    scheduler.finish(request)
    assert isinstance(request.record, Record)
    return request.record


def _difference(record: Record, line: _Line, tokenizer: Tokenizer, dialect: Dialect) -> FirstDifference | None:
    if record.closest is None or all(miss.cause is not MissCause.DIVERGED for miss in record.misses):
        return None
    return first_difference(
        line.tokens,
        line.conversation,
        record.closest,
        lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
        partial(read_reply, tokenizer, dialect),
        places=line.places,
    )
