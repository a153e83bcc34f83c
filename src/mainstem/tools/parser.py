"""A reply's text, as it comes, taken apart into what was thought, said and called.

How the text is cut into pieces makes no difference to what comes out. A call comes out when it is whole; what turns
out to be none comes out as text, to the last character. White space between text and calls, with which models set
them apart, is dropped at the end of the text, because templates write their own.

It knows nothing of tokens; what calls look like is the business of `syntax`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import Enum, auto

from mainstem.tools.segments import Call, Reasoning, Segment, Text
from mainstem.tools.syntax import CallSyntax, Reader

# Characters read for nothing before a reply's braces are taken for text: nothing that means to call comes near it.
MAX_WASTED = 1_000_000
# Longer texts are read in pieces, since what follows a call is copied.
MAX_PIECE = 16_384


class ReplyParser:
    """Takes one reply apart.

    Args:
        syntax: of calls; None if there are none to look for.
        known: names of the tools on offer.
        reasoning: marks around thoughts, as (start, end); None if there are none to look for.
        in_reasoning: the prompt has opened the thoughts already.
        max_calls: further calls are left out.

    Attributes:
        in_reasoning: the reply is in the middle of a thought.
        num_calls: how many calls came out.
    """

    def __init__(
        self,
        syntax: CallSyntax | None = None,
        known: Collection[str] = (),
        *,
        reasoning: tuple[str, str] | None = None,
        in_reasoning: bool = False,
        max_calls: int | None = None,
    ) -> None:
        self._calls = _CallSplitter(syntax, known) if syntax is not None else None
        self._thoughts = _ThoughtSplitter(*reasoning, inside=in_reasoning) if reasoning else None
        self._max_calls = max_calls
        self.num_calls = 0

    @property
    def in_reasoning(self) -> bool:
        return self._thoughts is not None and self._thoughts.inside

    def push(self, text: str) -> list[Segment]:
        """Takes the next piece; gives what is certain by now."""
        pieces = (text[at : at + MAX_PIECE] for at in range(0, len(text), MAX_PIECE))
        return [segment for piece in pieces for segment in self._split(piece, final=False)]

    def flush(self) -> list[Segment]:
        """The reply is over: gives what was held back."""
        return list(self._split("", final=True))

    def _split(self, text: str, *, final: bool) -> Iterator[Segment]:
        if self._thoughts is not None:
            thought, text = self._thoughts.split(text, final=final)
            if thought:
                yield Reasoning(thought)
        if self._calls is None:
            if text:
                yield Text(text)
            return
        for segment in self._calls.split(text, final=final):
            if isinstance(segment, Call):
                if self._max_calls is not None and self.num_calls >= self._max_calls:
                    continue
                self.num_calls += 1
            yield segment


class _Stage(Enum):
    START = auto()
    INSIDE = auto()
    GAP = auto()
    OVER = auto()


class _ThoughtSplitter:
    """Parts thoughts, which come first if at all, from the rest, and drops the marks and line breaks around them."""

    def __init__(self, start: str, end: str, *, inside: bool) -> None:
        self._start, self._end = start, end
        self._stage = _Stage.INSIDE if inside else _Stage.START
        self._held = ""
        self._thought_yet = False

    @property
    def inside(self) -> bool:
        return self._stage is _Stage.INSIDE

    def split(self, text: str, *, final: bool) -> tuple[str, str]:
        """What is certain to be thought, and what is certain to come after the thoughts."""
        self._held += text
        thought = ""
        if self._stage is _Stage.START:
            self._begin(final=final)
        if self._stage is _Stage.INSIDE:
            thought = self._think(final=final)
        if self._stage is _Stage.GAP:
            self._held = self._held.lstrip("\r\n")
            if self._held:
                self._stage = _Stage.OVER
        if self._stage is not _Stage.OVER:
            return thought, ""
        rest, self._held = self._held, ""
        return thought, rest

    def _begin(self, *, final: bool) -> None:
        begins = self._held.lstrip()
        if begins.startswith(self._start):
            self._stage, self._held = _Stage.INSIDE, begins[len(self._start) :]
        elif final or not self._start.startswith(begins):
            self._stage = _Stage.OVER

    def _think(self, *, final: bool) -> str:
        if not self._thought_yet:
            self._held = self._held.lstrip("\r\n")
        at = self._held.find(self._end)
        if at >= 0:
            thought, self._held = self._held[:at].rstrip("\r\n"), self._held[at + len(self._end) :]
            self._stage = _Stage.GAP
            return thought
        certain = len(self._held) - (0 if final else _overlap(self._held, self._end))
        thought = self._held[:certain].rstrip("\r\n")
        self._held = "" if final else self._held[len(thought) :]
        self._thought_yet |= bool(thought)
        return thought


class _CallSplitter:
    """Parts calls from text."""

    def __init__(self, syntax: CallSyntax, known: Collection[str]) -> None:
        self._syntax = syntax
        self._known = known
        self._held = ""
        self._searched = 0  # no trigger begins before this place of what is held
        self._reader: Reader | None = None
        self._space: list[str] = []  # between text and what comes next
        self._called = False
        self._wasted = 0

    def split(self, text: str, *, final: bool) -> Iterator[Text | Call]:
        """What the text is, as far as that is certain."""
        self._held += text
        while self._held:
            if self._reader is None and not self._find_trigger(final=final):
                yield from self._say(self._cut(self._searched))
                break
            if self._searched:
                yield from self._say(self._cut(self._searched))
            assert self._reader is not None
            verdict = self._reader.read(self._held, final=final)
            if verdict is None:
                return
            scanned = self._reader.scanned
            self._reader = None
            if verdict.calls:
                source = self._cut(verdict.length)
                for position, call in enumerate(verdict.calls):
                    yield Call(call.name, call.arguments, "" if position else source)
                self._called = True
            else:
                self._wasted += scanned
                yield from self._say(self._cut(verdict.length))
        if final and not self._called and self._space:
            yield Text("".join(self._space))

    def _find_trigger(self, *, final: bool) -> bool:
        """Set `_searched` to where the next trigger begins, or to where text that may become one does."""
        if self._wasted > MAX_WASTED:
            self._searched = len(self._held)
            return False
        found = [(at, trigger) for trigger in self._syntax.triggers if (at := self._held.find(trigger)) >= 0]
        if found:
            self._searched, trigger = min(found)
            self._reader = self._syntax.reader(trigger, self._known)
            return True
        overlap = 0 if final else max(_overlap(self._held, trigger) for trigger in self._syntax.triggers)
        self._searched = len(self._held) - overlap
        return False

    def _cut(self, length: int) -> str:
        part, self._held = self._held[:length], self._held[length:]
        self._searched = 0
        return part

    def _say(self, text: str) -> Iterator[Text]:
        said = text.rstrip()
        if said:
            yield Text("".join(self._space) + said)
            self._space.clear()
        if len(said) < len(text):
            self._space.append(text[len(said) :])


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` with which `mark` begins, short of the whole mark."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-length:]):
            return length
    return 0
