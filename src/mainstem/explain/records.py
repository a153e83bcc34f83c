"""What is remembered of a request: where it came from, what of its prompt was cached, and why the rest was not.

It knows token positions and requests' names; how causes are found is in `mainstem.explain.recorder`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from mainstem.explain.causes import MissCause
from mainstem.explain.sequences import Step
from mainstem.tokens.conversation import TENANT_PARTS, Conversation
from mainstem.tokens.placed import Places
from mainstem.tree import TokenArray
from mainstem.tree.ghosts import Fate
from mainstem.tree.keys import NamespaceKey

if TYPE_CHECKING:
    from mainstem.explain.diagnosis import FirstDifference


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who asks, and for what, as the engine is told it. The engine itself needs nothing of it.

    Attributes:
        id: the caller's name for the request; the replies to several prompts may have one in common.
        alias: another name for it, which need not be its alone.
        position: of the prompt, where one call has several.
        session: the conversation that it belongs to, if the caller says so.
        key: what groups it with others, if the caller says so.
        compare_with: the id of an earlier request that the caller wants it to be compared with.
        conversation: what was rendered; None for plain prompts.
        places: where its texts stand in the caller's request; None for those of Chat Completions.
    """

    id: str
    alias: str | None = None
    position: int = 0
    session: str | None = None
    key: str | None = None
    compare_with: str | None = None
    conversation: Conversation | None = None
    places: Places | None = None


class Miss(NamedTuple):
    """Tokens `[start, stop)` of a prompt were computed, for one cause.

    Attributes:
        fate: what became of them, where they were cached once.
        other: the name of the request that the cause is about: the one that was computing them, or whose they are.
    """

    start: int
    stop: int
    cause: MissCause
    fate: Fate | None = None
    other: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A request beside an earlier one.

    Attributes:
        id: of the earlier one.
        position: of its prompt.
        common: tokens that both begin with.
        length: tokens of the earlier one, reply included.
        num_prompt: tokens of its prompt.
        lost: tokens after these that both have in common, but not in the same place.
        earlier: int32[length], its tokens; None once they are remembered only with the earlier request's record.
        conversation: what it was rendered from.
        places: where its texts stand in the caller's request.
        text_bytes: that this takes, about.
    """

    id: str
    position: int
    common: int
    length: int
    num_prompt: int
    lost: int
    earlier: TokenArray | None
    conversation: Conversation | None
    places: Places | None = None
    text_bytes: int = 0

    @property
    def diverges(self) -> bool:
        """Whether the earlier one goes on otherwise."""
        return self.common < self.length


@dataclass(slots=True, eq=False, repr=False)
class Record:
    """One request, and why each of its uncached tokens was uncached.

    Attributes:
        id: the caller's name for it, else the engine's.
        order: larger for younger ones.
        namespace: that it belongs to.
        created: when it was admitted, as a Unix time.
        noted: the same by the ghosts' clock.
        num_prompt: tokens of its prompt.
        num_cached: of these, those that were cached when it was admitted.
        misses: the others, from the first to the last, without a gap.
        public_misses: the same, as its caller is told them: what other namespaces have is first seen.
        origin: where it came from; None if nobody said.
        closest: the earlier request that has most in common with it; None if there was none.
        asked: the one that its caller wanted it to be compared with; None if that is not known.
        prefill_s: seconds of the engine's steps that its prompt took, by its share of their tokens.
        num_reply: tokens of its reply, as of when it ended or last gave way.
        text_bytes: that its conversation and the places of its texts take, about.
        difference: from the closest one, once somebody has looked.
        end: see `Sequences`.
    """

    id: str
    order: int
    namespace: NamespaceKey
    created: float
    noted: float
    num_prompt: int
    num_cached: int
    misses: tuple[Miss, ...] = ()
    public_misses: tuple[Miss, ...] = ()
    origin: Origin | None = None
    closest: Comparison | None = None
    asked: Comparison | None = None
    prefill_s: float = 0.0
    num_reply: int = 0
    text_bytes: int = 0
    difference: FirstDifference | None = None
    end: Step | None = None

    def __repr__(self) -> str:
        """Its name, and what a reply may say of it."""
        misses = {cause.value: tokens for cause, tokens in tokens_by_cause(self.public_misses).items()}
        return f"Record({self.id!r}, prompt_tokens={self.num_prompt}, cached_tokens={self.num_cached}, {misses=})"

    @property
    def num_uncached(self) -> int:
        """Prompt tokens that were not cached."""
        return self.num_prompt - self.num_cached

    @property
    def names(self) -> tuple[str, ...]:
        """By which it can be asked for."""
        alias = None if self.origin is None else self.origin.alias
        return (self.id,) if alias in (None, self.id) else (self.id, alias)

    @property
    def position(self) -> int:
        """Of the prompt, where one call has several."""
        return 0 if self.origin is None else self.origin.position

    @property
    def conversation(self) -> Conversation | None:
        """What the prompt was rendered from."""
        return None if self.origin is None else self.origin.conversation

    @property
    def places(self) -> Places | None:
        """Where its texts stand in the caller's request."""
        return None if self.origin is None else self.origin.places

    @property
    def kept_bytes(self) -> int:
        """That all conversations take which it keeps: those of the requests that it was compared with, too."""
        compared = [comparison.text_bytes for comparison in (self.closest, self.asked) if comparison is not None]
        return self.text_bytes + sum(compared)

    @property
    def tenant(self) -> NamespaceKey:
        """Whose it is: the part of the namespace that no client can choose."""
        return self.namespace[:TENANT_PARTS]

    @property
    def main_cause(self) -> MissCause | None:
        """The cause of most of the uncached tokens; None if all were cached."""
        totals = tokens_by_cause(self.misses)
        return max(totals, key=lambda cause: totals[cause], default=None)

    def forget_tokens(self) -> None:
        """Keep no other request's tokens any more."""
        if self.closest is not None:
            self.closest = replace(self.closest, earlier=None)
        if self.asked is not None:
            self.asked = replace(self.asked, earlier=None)


def tokens_by_cause(misses: Iterable[Miss]) -> dict[MissCause, int]:
    """How many tokens each cause has, in the order in which they come."""
    totals: dict[MissCause, int] = {}
    for miss in misses:
        totals[miss.cause] = totals.get(miss.cause, 0) + miss.stop - miss.start
    return totals
