"""Recorded agents, replayed turn by turn over a token history: what a prompt costs when its replies were generated.

    python -m benchmarks.replay_history ../shared/data/trajectories --out benchmarks/results/history-replay.json

Each reply of a recording is taken to have been generated in tokens that no tokenizer would choose (its text is cut at
random and each piece tokenized by itself), with its tool calls in another spelling than the client sends back, and is
remembered as the server does it. The next prompt of the client is rendered and encoded with the history, and matched
against all that was computed before in a radix tree that forgets nothing. A turn **breaks** when its messages go on
from an earlier turn and its reply, but the tree does not have all of that turn's prompt and reply but the last token,
which has no KV. A recording without the tools that it calls (pi's logs leave them out) is given tools of these names,
as its agent had. **A** is the tokens computed, divided by those of text that no earlier turn of the recording had.
Beside it, the same without a history. Reads files, needs no model but the embedded one's tokenizer. The command fails
if there is a break, or A is above 1.02.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measuring import keep
from mainstem.bench.recordings import RecordedCall, Recording, read_recordings
from mainstem.errors import InvalidRequest
from mainstem.model.embedded import fetch_embedded
from mainstem.tokens import TokenArray, TokenHistory, Tokenizer
from mainstem.tools import Dialect
from mainstem.tree import RadixCache

MOST_AMPLIFICATION = 1.02
TREE_TOKENS = 40_000_000


class Replayed(NamedTuple):
    """What came of some recordings.

    Attributes:
        turns: prompts that were rendered.
        continuing: of these, those whose messages go on from an earlier turn and its reply.
        breaks: of these, those that did not find all of it.
        refused: turns that the template refuses.
        prompt_tokens: of all prompts.
        computed: of these, not found in the tree.
        new: tokens of text that no earlier turn had.
        kept: replies that came back written otherwise, and were recognised.
    """

    turns: int = 0
    continuing: int = 0
    breaks: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    computed: int = 0
    new: int = 0
    kept: int = 0

    @property
    def amplification(self) -> float:
        """Tokens computed for each that is new."""
        return self.computed / max(1, self.new)

    def __add__(self, other: object) -> Replayed:
        assert isinstance(other, Replayed)
        return Replayed(*(a + b for a, b in zip(self, other, strict=True)))


def replay(recordings: Iterable[Recording], tokenizer: Tokenizer, *, remembers: bool = True) -> Replayed:
    """Replay recordings, each for itself.

    Args:
        recordings: of agents.
        tokenizer: of a model whose template knows tools.
        remembers: False for a server that tokenizes every prompt anew.
    """
    total = Replayed()
    for recording in recordings:
        total += _Replay(tokenizer, remembers=remembers).run(recording)
    return total


class _Replay:
    def __init__(self, tokenizer: Tokenizer, *, remembers: bool) -> None:
        self._tokenizer = tokenizer
        self._dialect = Dialect(tokenizer)
        self._history = TokenHistory(tokenizer, max_entries=10**9 if remembers else 0, max_bytes=10**12)
        self._tree = RadixCache(TREE_TOKENS)
        self._random = random.Random(0)
        self._asked: dict[bytes, int] = {}
        self._texts: list[str] = []

    def run(self, recording: Recording) -> Replayed:
        total = Replayed()
        tools = _called(recording)
        for call in recording.calls:
            try:
                total += self._turn(call._replace(tools=call.tools or tools))
            except InvalidRequest:
                total += Replayed(refused=1)
        return total

    def _turn(self, call: RecordedCall) -> Replayed:
        tokenizer, history = self._tokenizer, self._history
        rendered = tokenizer.render_chat(call.messages, tools=call.tools)
        names = [tool["function"]["name"] for tool in call.tools]
        prompt = history.encode(rendered, meaning=self._dialect.meaning(names))
        found = self._tree.match_prefix(prompt.ids).length
        expected = self._expected(call)
        ids, text = self._generated(call.reply)
        history.remember(prompt, ids, text)
        self._tree.insert(np.concatenate([prompt.ids, ids[:-1]]))
        new = self._new(rendered)
        insort(self._texts, self._rendered(call))
        said = _Chain(call, call.reply).digests[-1]
        self._asked[said] = max(self._asked.get(said, 0), len(prompt.ids) + len(ids) - 1)
        return Replayed(
            turns=1,
            continuing=expected is not None,
            breaks=expected is not None and found < expected,
            prompt_tokens=len(prompt.ids),
            computed=len(prompt.ids) - found,
            new=new,
            kept=prompt.text != rendered,
        )

    def _rendered(self, call: RecordedCall) -> str:
        """A prompt and its reply, as they are in the prompts that go on from them."""
        said = (*call.messages, call.reply)
        return self._tokenizer.render_chat(said, tools=call.tools, add_generation_prompt=False)

    def _expected(self, call: RecordedCall) -> int | None:
        """How much the tree must have: the longest earlier turn that this one goes on from, with its reply."""
        found = [self._asked.get(digest) for digest in _Chain(call).digests]
        return max((tokens for tokens in found if tokens is not None), default=None)

    def _new(self, rendered: str) -> int:
        """Tokens of the text that no earlier prompt and reply began with, by the tokenizer's own cut."""
        # Of sorted texts, the one with the longest equal beginning is a neighbour.
        at = bisect_left(self._texts, rendered)
        common = max((_common(rendered, text) for text in self._texts[max(0, at - 1) : at + 1]), default=0)
        return len(self._tokenizer.encode(rendered[common:]))

    def _generated(self, reply: Mapping[str, Any]) -> tuple[TokenArray, str]:
        """A reply as a model might have generated it: its tokens, with the end of the turn, and its text."""
        content = reply.get("content") or ""
        if not isinstance(content, str):
            content = "\n".join(part.get("text") or "" for part in content)
        calls = [self._written(call["function"]) for call in reply.get("tool_calls") or ()]
        text = "\n\n".join([*([content] if content else []), *calls])
        pieces = re.findall(f"(?s).{{1,{self._random.randint(2, 12)}}}", text)
        ids = [self._tokenizer.encode(piece) for piece in pieces]
        end = self._tokenizer.special_id("<|im_end|>")
        return np.concatenate([*ids, np.array([end], np.int32)]), text

    def _written(self, function: Mapping[str, Any]) -> str:
        """A call as a model might write it: with other spaces, and keys in another order, than a client would."""
        value = _value(function["arguments"])
        keys = list(value)
        self._random.shuffle(keys)
        written = json.dumps({key: value[key] for key in keys}, ensure_ascii=False, separators=(" ,", ":  "))
        return f'<tool_call>{{"name":{json.dumps(function["name"])}, "arguments":{written}}}</tool_call>'


def _called(recording: Recording) -> tuple[dict[str, Any], ...]:
    """Tools of the names that are called, if no tools are recorded."""
    if any(call.tools for call in recording.calls):
        return ()
    said = (message for call in recording.calls for message in (*call.messages, call.reply))
    names = {made["function"]["name"] for message in said for made in message.get("tool_calls") or ()}
    functions = ({"name": name, "parameters": {"type": "object"}} for name in sorted(names))
    return tuple({"type": "function", "function": function} for function in functions)


class _Chain:
    """A digest of what the tools and the first messages say, for each number of messages."""

    def __init__(self, call: RecordedCall, *more: Mapping[str, Any]) -> None:
        digest = blake2b(json.dumps(call.tools).encode(), digest_size=16).digest()
        self.digests: list[bytes] = []
        for message in (*call.messages, *more):
            digest = blake2b(digest + json.dumps(_said(message)).encode(), digest_size=16).digest()
            self.digests.append(digest)


def _said(message: Mapping[str, Any]) -> Any:
    """What a message says to the model; clients add and drop fields that it does not see."""
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "\n".join(part.get("text") or "" for part in content)
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = [(function["name"], _value(function["arguments"])) for function in functions]
    return message["role"], text.strip(), calls


def _value(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments


def _common(a: str, b: str) -> int:
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


def _row(name: str, with_history: Replayed, without: Replayed) -> dict[str, Any]:
    return {
        "recordings": name,
        **with_history._asdict(),
        "amplification": round(with_history.amplification, 4),
        "breaks_without_history": without.breaks,
        "amplification_without_history": round(without.amplification, 4),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Replay all recordings in a folder; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("data", type=Path, help="folder with recordings of agents")
    parser.add_argument("--out", type=Path, default=Path("build/bench/history-replay.json"))
    arguments = parser.parse_args(argv)
    tokenizer = Tokenizer.load(fetch_embedded(lambda *_: None))
    begin = time.monotonic()
    by_source: dict[str, list[Recording]] = {}
    for recording in read_recordings([arguments.data]).recordings:
        by_source.setdefault(recording.source, []).append(recording)
    rows, both = [], (Replayed(), Replayed())
    for source, recordings in by_source.items():
        pair = replay(recordings, tokenizer), replay(recordings, tokenizer, remembers=False)
        both = both[0] + pair[0], both[1] + pair[1]
        rows.append(_row(source, *pair))
        print(f"{time.monotonic() - begin:.0f} s", rows[-1], flush=True)
    rows.append(_row("all", *both))
    print(rows[-1])
    keep(arguments.out, {"workload": __doc__, "recordings": rows})
    return int(both[0].breaks > 0 or both[0].amplification > MOST_AMPLIFICATION)


if __name__ == "__main__":
    sys.exit(main())
