"""What a set of requests loses of its prefixes, and why: pairs of requests compared, equal faults told once.

A finding is a **note**, and no alarm, where nothing can be gained or where little is lost by nature: nothing that a
cache could reuse stands behind the change, a date that goes on by a day, a history that is shortened seldom, or what
differs between conversations and may well have to. It knows no files and no terminal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple

from mainstem.diagnosis import Cause, Difference, Place, Prompt
from mainstem.lint.conversations import Conversation, Request
from mainstem.lint.conversations import Place as Where
from mainstem.lint.faults import faults
from mainstem.lint.sizes import Overlap, Sizes

SELDOM = 0.1  # of the requests of a conversation that go on with it
_SAME_AGENT = 0.5  # of its tools and instructions
_NEARLY_THE_SAME = 0.9
_RECENT_AGENTS = 32
_REMEMBERED = 8  # requests of a conversation, before the last, in which a cache may find more of the next one
_SHORTENED = (Cause.HISTORY_ELIDED, Cause.HISTORY_WINDOWED)
# What no conversation needs to have of its own.
_NEVER_OWN = (Cause.TIMESTAMP, Cause.UUID, Cause.KEY_ORDER, Cause.WHITESPACE, Cause.TOOLS_REORDERED)
_MAY_BE_OWN = (Cause.DATE, Cause.COUNTER, Cause.PATH, Cause.LISTING)


class Level(StrEnum):
    """Whether something should be done about it."""

    ALARM = "alarm"
    NOTE = "note"


class Scope(StrEnum):
    """Between which requests something changed."""

    TURNS = "turns"  # of one conversation
    CONVERSATIONS = "conversations"  # of one agent


class Occurrence(NamedTuple):
    """Two requests, and what changed between them.

    Attributes:
        conversation: its number.
        lost: tokens that the change alone would cost.
    """

    before: Where
    after: Where
    difference: Difference
    lost: int
    conversation: int


@dataclass(slots=True)
class Finding:
    """Changes of one class in one kind of place.

    Attributes:
        compared: pairs of requests in which it could have been, of the conversations in which it was.
        level: alarm or note; `reason` says why it is but a note.
    """

    scope: Scope
    cause: Cause
    place: Place
    occurrences: list[Occurrence] = field(default_factory=list)
    compared: int = 0
    level: Level = Level.ALARM
    reason: str = ""

    @property
    def first(self) -> Occurrence:
        """The first one."""
        return self.occurrences[0]

    @property
    def parts(self) -> list[str]:
        """Where it was, in the order in which it was found there."""
        return list(dict.fromkeys(occurrence.difference.part for occurrence in self.occurrences))

    @property
    def times(self) -> int:
        """In how many requests it was."""
        return len({occurrence.after for occurrence in self.occurrences})

    @property
    def lost(self) -> int:
        """Tokens that it alone costs, in all; of several changes in one request, the first costs all that others do."""
        dearest: dict[Where, int] = {}
        for occurrence in self.occurrences:
            dearest[occurrence.after] = max(occurrence.lost, dearest.get(occurrence.after, 0))
        return sum(dearest.values())

    @property
    def lost_per_turn(self) -> float:
        """The same for each pair of requests that were compared."""
        return self.lost / max(1, self.compared)

    @property
    def fix(self) -> str:
        """What to do about it."""
        return self.first.difference.fix


class Pair(NamedTuple):
    """Two requests that were compared, and what became of the earlier one's tokens."""

    overlap: Overlap
    causes: tuple[tuple[Any, ...], ...]  # keys of the findings that it has a part in


class LintResult(NamedTuple):
    """What was found.

    Attributes:
        requests, conversations: how many there are.
        compared: pairs of requests.
        prompt_tokens: of all requests.
        kept: tokens of later requests that had been sent in the request before; all that a cache could reuse.
        reused: those of them that stand where a cache finds them.
        findings: alarms first, the costliest first.
    """

    requests: int
    conversations: int
    compared: int
    prompt_tokens: int
    kept: int
    reused: int
    findings: list[Finding]

    @property
    def share(self) -> float:
        """Reusable tokens, of those that had been sent before; 1 where nothing had."""
        return self.reused / self.kept if self.kept else 1.0

    @property
    def alarms(self) -> list[Finding]:
        """What something should be done about."""
        return [finding for finding in self.findings if finding.level is Level.ALARM]


def lint_conversations(conversations: Sequence[Conversation], sizes: Sizes) -> LintResult:
    """Find what breaks prefixes."""
    linting = _Linting(sizes)
    for number, conversation in enumerate(conversations):
        linting.follow(number, conversation)
    linting.compare_agents(conversations)
    return linting.result(conversations)


class _Linting:
    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._findings: dict[tuple[Any, ...], Finding] = {}
        self._pairs: list[Pair] = []
        self._turns: dict[int, int] = {}  # of a conversation: requests that go on with it

    def follow(self, number: int, conversation: Conversation) -> None:
        """Compare each request of a conversation with the one before."""
        requests = conversation.requests
        self._turns[number] = len(requests) - 1
        for i, (before, after) in enumerate(pairwise(requests)):
            earlier = [request.answered for request in requests[max(0, i - _REMEMBERED) : i]]
            self._compare(Scope.TURNS, number, (before, before.answered), (after, after.prompt), earlier)

    def compare_agents(self, conversations: Sequence[Conversation]) -> None:
        """Compare the instructions and tools of each conversation with those of an earlier one of the same agent."""
        seen: list[tuple[Request, Prompt]] = []
        for number, conversation in enumerate(conversations):
            request = conversation.requests[0]
            head = _head(request.prompt)
            if not head.messages and not head.tools:
                continue
            earlier = self._same_agent(head, seen)
            if earlier is not None:
                self._compare(Scope.CONVERSATIONS, number, earlier, (request, head))
            others = [pair for pair in seen if pair[1] != head]
            seen = [*others[1 - _RECENT_AGENTS :], (request, head)]

    def result(self, conversations: Sequence[Conversation]) -> LintResult:
        """All findings, and the sums."""
        for finding in self._findings.values():
            self._judge(finding)
        kept = reused = 0
        for pair in self._pairs:
            found = [self._findings[key] for key in pair.causes]
            harmless = all(finding.level is Level.NOTE and not _counts(finding) for finding in found)
            reused += pair.overlap.kept if harmless else pair.overlap.reused
            kept += pair.overlap.kept
        order = {Level.ALARM: 0, Level.NOTE: 1}
        requests = [request for conversation in conversations for request in conversation.requests]
        return LintResult(
            requests=len(requests),
            conversations=len(conversations),
            compared=len(self._pairs),
            prompt_tokens=sum(self._sizes.prompt(request.prompt) for request in requests),
            kept=kept,
            reused=reused,
            findings=sorted(self._findings.values(), key=lambda finding: (order[finding.level], -finding.lost)),
        )

    def _same_agent(self, head: Prompt, seen: Sequence[tuple[Request, Prompt]]) -> tuple[Request, Prompt] | None:
        """The latest that is nearly the same, else the one that is most alike."""
        size = self._sizes.prompt(head)
        best, found = _SAME_AGENT * size, None
        for earlier in reversed(seen):
            kept = self._sizes.overlap(earlier[1], head).kept
            if kept >= best:
                best, found = kept + 1, earlier
            if kept >= _NEARLY_THE_SAME * size:
                break
        return found

    def _compare(
        self,
        scope: Scope,
        number: int,
        earlier: tuple[Request, Prompt],
        later: tuple[Request, Prompt],
        others: Sequence[Prompt] = (),
    ) -> None:
        """Compare two requests; a cache may have still more of the later one from `others`, which came before both."""
        (before, old), (after, new) = earlier, later
        overlap = self._sizes.overlap(old, new)
        keys = []
        found = faults(old, new, self._sizes, overlap)
        if found:
            reused = max((self._sizes.overlap(other, new).reused for other in others), default=0)
            overlap = overlap._replace(reused=max(overlap.reused, min(reused, overlap.kept)))
        for fault in found:
            difference = fault.difference
            if scope is Scope.CONVERSATIONS and difference.cause not in (*_NEVER_OWN, *_MAY_BE_OWN):
                continue
            key = (scope, difference.cause, difference.place, _kind_of(difference.part))
            finding = self._findings.setdefault(key, Finding(scope, difference.cause, difference.place))
            finding.occurrences.append(
                Occurrence(before.place, after.place, difference, min(fault.lost, overlap.lost), number)
            )
            keys.append(key)
        if not keys:  # the conversation went on, or began otherwise: nothing is lost
            overlap = _nothing_lost(overlap)
        self._pairs.append(Pair(overlap, tuple(keys)))

    def _judge(self, finding: Finding) -> None:
        """Count what was compared, and tell notes from alarms."""
        numbers = {occurrence.conversation for occurrence in finding.occurrences}
        if finding.scope is Scope.TURNS:
            finding.compared = sum(self._turns[number] for number in numbers)
        else:
            finding.compared = finding.times
        finding.reason = self._excuse(finding)
        finding.level = Level.NOTE if finding.reason else Level.ALARM

    def _excuse(self, finding: Finding) -> str:
        """Why a finding is no alarm; empty if it is one."""
        share = finding.times / finding.compared
        if not finding.lost:
            return "nothing that a cache could reuse stands behind it"
        if finding.lost_per_turn < 1:
            return "it costs less than a token a turn"
        if finding.scope is Scope.CONVERSATIONS and finding.cause in _MAY_BE_OWN:
            return "it differs between conversations, and may have to"
        if finding.cause is Cause.DATE and (share <= 0.5 or finding.compared == 1):
            return "the date stays the same for a day"
        if finding.cause in _SHORTENED and share <= SELDOM:
            return "it is done seldom"
        return ""


def _counts(finding: Finding) -> bool:
    """Whether what a note loses counts as lost."""
    return finding.cause in _SHORTENED


def _nothing_lost(overlap: Overlap) -> Overlap:
    """An overlap of which nothing is lost."""
    return overlap._replace(kept=overlap.reused)


def _head(prompt: Prompt) -> Prompt:
    """What an agent begins every conversation with."""
    return replace(prompt, messages=prompt.messages[: prompt.num_system])


def _kind_of(part: str) -> str:
    """A path with stars for the numbers of messages and tools, except that of the first message."""
    return re.sub(r"\[(\d+)\]", "[*]", part) if not part.startswith(("messages[0]", "input[0]")) else part
