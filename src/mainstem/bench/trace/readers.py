"""Reads hash traces from files: which formats there are, what their fields mean, and what can be wrong with them.

It knows nothing of caches. Two formats are read:

- **Mooncake** (`conversation_trace.jsonl` and its like, https://github.com/kvcache-ai/Mooncake): one request a line,
  `timestamp` in milliseconds, `input_length` in tokens, `hash_ids` of 512-token blocks, the last one perhaps partial.
  Identities hold within one file. The files do not say their block size; others have been published in this format
  with blocks of 16 tokens.
- **kv-cache-tester** (https://github.com/callanjfox/kv-cache-tester): one coding-agent session a file, `requests` with
  `t` in seconds, `in` in tokens and `hash_ids` of whole blocks of `block_size` tokens. A sub-agent is an entry with
  `requests` of its own, whose times count from its start. Identities hold within one file when `hash_id_scope` is
  `local`, in all files when it is `global`. Requests to different models share nothing.

Traces of token counts without identities, such as TraceLab's, cannot drive a cache and are refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mainstem.bench.trace.blocks import BlockTrace, RecordedRequest, number_blocks
from mainstem.errors import TraceError
from mainstem.wording import json_value

MOONCAKE_BLOCK_SIZE = 512


class _File(NamedTuple):
    """What one file holds."""

    block_size: int
    requests: list[RecordedRequest]


def read_traces(paths: Sequence[Path], *, block_size: int | None = None) -> BlockTrace:
    """Read files into one trace, as if their users had shared one server: all start together, and keep their times.

    Args:
        paths: the files; at least one.
        block_size: tokens in a block, for files that do not say it.

    Raises:
        TraceError: when a file cannot be read, is no hash trace or has a wrong value; the message says where.
    """
    files = [_read(path, block_size) for path in paths]
    for path, file in zip(paths, files, strict=True):
        if file.block_size != files[0].block_size:
            raise TraceError(
                f"{path} has blocks of {file.block_size} tokens and {paths[0]} of {files[0].block_size}; "
                "give files of one block size"
            )
    trace = number_blocks((request for file in files for request in file.requests), files[0].block_size)
    if trace.distinct == 0:
        raise TraceError(f"no prompt in {paths[0]} has a whole block")
    return trace


def _read(path: Path, block_size: int | None) -> _File:
    try:
        text = path.read_text(encoding="utf-8")
    except IsADirectoryError:
        raise TraceError(f"{path} is a folder; name its files, as in {path / '*.json*'}") from None
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path} is not a text file") from None
    first = _first_value(path, text)
    if isinstance(first, dict) and "requests" in first:
        return _read_session(path, first)
    if isinstance(first, dict) and "hash_ids" in first:
        return _read_mooncake(path, text, block_size or MOONCAKE_BLOCK_SIZE)
    rounds = first[0] if isinstance(first, list) and first else first
    if isinstance(rounds, dict) and "prefix_tokens" in rounds:
        raise TraceError(
            f"{path} counts tokens but does not say which blocks they are (no hash_ids): no cache can replay it"
        )
    raise TraceError(
        f"{path} is no hash trace: neither lines with input_length and hash_ids (Mooncake) "
        "nor a session with requests (kv-cache-tester)"
    )


def _first_value(path: Path, text: str) -> Any:
    """The JSON value that the file begins with: all of it, or its first line."""
    try:
        value, _ = json.JSONDecoder().raw_decode(text.lstrip("\ufeff \t\r\n"))
    except (ValueError, RecursionError):
        raise TraceError(f"{path} is neither JSON nor JSON lines") from None
    return value


def _read_mooncake(path: Path, text: str, block_size: int) -> _File:
    requests: list[RecordedRequest] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            raise TraceError(f"{where}: not a JSON object, perhaps cut off") from None
        time_ms = _number(fields, "timestamp", where)
        requests.append(_request(fields, "input_length", time_ms / 1000, path, where))
        _check_length(requests[-1], block_size, where)
    return _File(block_size, requests)


def _read_session(path: Path, session: dict[str, Any]) -> _File:
    block_size = _count(session, "block_size", str(path))
    if block_size < 1:
        raise TraceError(f"{path}: block_size must be at least 1, got {block_size}")
    is_global = session.get("hash_id_scope", "local") == "global"
    requests: list[RecordedRequest] = []
    for where, start_s, entry in _session_requests(session, str(path), 0.0):
        time_s = start_s + _number(entry, "t", where)
        scope = (None if is_global else path, entry.get("model"))
        requests.append(_request(entry, "in", time_s, scope, where))
        _check_length(requests[-1], block_size, where)
    if not requests:
        raise TraceError(f"{path} has no requests")
    return _File(block_size, requests)


def _session_requests(holder: Any, where: str, start_s: float) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """All requests, those of sub-agents too: where each is, from when its time counts, and its fields."""
    entries = holder["requests"]
    if not isinstance(entries, list):
        raise TraceError(f"{where}: requests must be a list")
    for number, entry in enumerate(entries, start=1):
        place = f"{where}, request {number}"
        if isinstance(entry, dict) and "requests" in entry:
            yield from _session_requests(entry, place, start_s + _number(entry, "t", place))
        else:
            yield place, start_s, entry


def _request(fields: Any, length: str, time_s: float, scope: object, where: str) -> RecordedRequest:
    ids = fields.get("hash_ids")
    if not isinstance(ids, list) or not all(type(block_id) is int for block_id in ids):
        raise TraceError(f"{where}: hash_ids must be a list of whole numbers")
    return RecordedRequest(time_s, _count(fields, length, where), scope, ids)


def _check_length(request: RecordedRequest, block_size: int, where: str) -> None:
    """A prompt has a block for every `block_size` tokens, and perhaps one for the rest."""
    whole, rest = divmod(request.tokens, block_size)
    if len(request.block_ids) not in (whole, whole + (rest > 0)):
        raise TraceError(
            f"{where}: a prompt of {request.tokens} tokens has not {len(request.block_ids)} blocks of {block_size}; "
            "if the file has blocks of another size, give it with --block-size"
        )


def _count(fields: Any, name: str, where: str) -> int:
    value = fields.get(name)
    if type(value) is not int or value < 0:
        raise TraceError(f"{where}: {name} must be a whole number that is not negative, got {json_value(value)}")
    return value


def _number(fields: Any, name: str, where: str) -> float:
    if not isinstance(fields, dict):
        raise TraceError(f"{where}: a request must be a JSON object")
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TraceError(f"{where}: {name} must be a number, got {json_value(value)}")
    return value
