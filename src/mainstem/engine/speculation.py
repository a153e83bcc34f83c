"""Speculative decoding: drafts for the requests of a step, and what became of them.

A draft is checked by sampling: after each token that was drafted, the reply's next token is drawn from the draft's own
logits, with the reply's own seed, penalties and grammar, exactly as a later step would. It is followed for as long as
what is drawn was drafted. For drafts that are given, not drawn, that is rejection sampling (Leviathan et al. 2023) in
its simplest form, and what comes out is what would have come out without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple, Self
from weakref import WeakKeyDictionary

import torch

from mainstem.config import EngineConfig
from mainstem.engine.outputs import RequestOutput
from mainstem.engine.reply import Reply
from mainstem.model import sample
from mainstem.scheduler import Request, Scheduler, SchedulerOutput
from mainstem.speculation import MAX_DRAFTS, Account, Candidates, DraftTree, Guess, Load, Pace, Rates, draft_of, look_up

# Different continuations that are looked at, from each source.
MAX_PATHS = 3
# A request whose best guess is less likely than this, and is not checked, is looked at again after a pause. Each is
# twice as long as the one before it, up to so many steps.
PROMISING, LONGEST_PAUSE = 0.25, 16


@dataclass(slots=True)
class _History:
    """What is remembered of a request between its steps.

    Attributes:
        rates: how often guesses about it come true.
        account: what drafts have cost and saved it.
        pause: length of its latest pause, in steps.
        left: how much of that is left.
    """

    rates: Rates
    account: Account = field(default_factory=Account)
    pause: int = 0
    left: int = 0

    def looked(self, candidates: Candidates, drafted: bool) -> None:
        """Decide when to look again: at once where that may pay."""
        if drafted:
            self.pause = 0
        elif candidates.root.children and max(g.probability for g in candidates.root.children) < PROMISING:
            self.pause = self.left = min(2 * self.pause or 1, LONGEST_PAUSE)


class _Proposal(NamedTuple):
    """A step that may have drafts: what it does without them, and what is guessed about each of its requests."""

    load: Load
    candidates: dict[Request, Candidates]
    drafted: int


class Speculation:
    """Drafts for an engine's requests.

    Args:
        scheduler: of the engine.
        sources: any of "tree" and "ngram".
        max_draft: most drafts a request in one step.
        adaptive: check only what is likely to pay; otherwise all that there is.
    """

    def __init__(self, scheduler: Scheduler, *, sources: Sequence[str], max_draft: int, adaptive: bool = True) -> None:
        self._scheduler = scheduler
        self._sources = frozenset(sources)
        self._max_draft = max_draft
        self.adaptive = adaptive
        # Slots of a page must stay in order, so that with pages of several tokens only one path can be checked.
        self._max_paths = MAX_PATHS if scheduler.cache.page_size == 1 else 1
        self._rates = Rates()
        self._pace = Pace()
        self._histories: WeakKeyDictionary[Request, _History] = WeakKeyDictionary()
        self._proposal: _Proposal | None = None

    @classmethod
    def of(cls, config: EngineConfig, scheduler: Scheduler) -> Self | None:
        """What these settings ask for; None for nothing."""
        sources = config.draft_sources
        return cls(scheduler, sources=sources, max_draft=config.max_draft) if sources else None

    def propose(self, output: SchedulerOutput) -> dict[int, DraftTree]:
        """Drafts to check in a step, by the index of their request in the schedule.

        Only steps in which every request computes one token have any.
        """
        self._proposal = None
        sources = {source.entry: source.request for source in output.sources}
        if len(sources) < len(output.sources) or any(
            stop - start > 1 or sources.get(entry) is not request
            for entry, (request, start, stop) in enumerate(output.scheduled)
        ):
            return {}
        candidates = {request: self._candidates(request) for request, *_ in output.scheduled}
        load = Load(len(output.scheduled), sum(stop for *_, stop in output.scheduled))
        ranked = self._ranked(candidates, self._scheduler.max_num_batched_tokens - load.requests)
        if self.adaptive:
            accounts = [self._history(request).account for request in candidates]
            ranked = ranked[: self._pace.most(load, [guess.probability for guess in ranked], accounts)]
        self._proposal = _Proposal(load, candidates, len(ranked))
        drafts = {}
        for entry, (request, *_) in enumerate(output.scheduled):
            draft = draft_of(ranked, candidates[request].root)
            if self.adaptive:
                self._history(request).looked(candidates[request], bool(draft.tokens))
            if draft.tokens:
                request.num_drafted += len(draft.tokens)
                drafts[entry] = draft
        return drafts

    def learn(self, said: Mapping[Request, Sequence[int]], seconds: float) -> None:
        """The step of the latest proposal took so long, and its replies went on like this."""
        proposal, self._proposal = self._proposal, None
        if proposal is None:
            return
        accounts = []
        for request, candidates in proposal.candidates.items():
            tokens = said.get(request, ())
            candidates.count(tokens)
            accounts.append((self._history(request).account, max(len(tokens) - 1, 0)))
        self._pace.note(proposal.load, seconds, proposal.drafted, accounts)

    def _history(self, request: Request) -> _History:
        history = self._histories.get(request)
        if history is None:
            history = self._histories[request] = _History(Rates(self._rates))
        return history

    def _candidates(self, request: Request) -> Candidates:
        history = self._history(request)
        candidates = Candidates(history.rates)
        if history.left:
            history.left -= 1
            return candidates
        # One token of what is left comes without drafts.
        length = min(self._max_draft, request.max_tokens - request.num_generated - 1)
        if length < 1:
            return candidates
        if "tree" in self._sources and request.handle is not None:
            tail = request.tokens.array[request.num_owned :]
            for path in self._scheduler.cache.continuations(request.handle, tail, length, self._max_paths):
                candidates.add(path, "tree")
        if "ngram" in self._sources:
            for lookup in look_up(request.tokens.array, length, self._max_paths):
                candidates.add(lookup.tokens, f"ngram {lookup.match.bit_length()}")
        return candidates

    def _ranked(self, candidates: Mapping[Request, Candidates], budget: int) -> list[Guess]:
        """The likeliest guesses of all requests, each after the one it follows, as many as could be checked."""
        order = count()
        open_: list[tuple[float, int, Guess, Request]] = []
        room: dict[Request, int] = {}
        for request, each in candidates.items():
            if each.root.children:
                room[request] = min(self._max_draft, self._scheduler.reserve_ahead(request, self._max_draft))
                open_ += [(-guess.probability, next(order), guess, request) for guess in self._kept(each.root)]
        heapify(open_)
        ranked: list[Guess] = []
        while open_ and len(ranked) < min(budget, MAX_DRAFTS):
            _, _, guess, request = heappop(open_)
            if room[request]:
                room[request] -= 1
                ranked.append(guess)
                for child in self._kept(guess):
                    heappush(open_, (-child.probability, next(order), child, request))
        return ranked

    def _kept(self, guess: Guess) -> list[Guess]:
        return guess.children if self._max_paths > 1 else guess.children[:1]


class Followed(NamedTuple):
    """A reply after its drafts were checked: all its news of this step, and which drafts were right."""

    news: RequestOutput
    nodes: list[int]


def follow(
    reply: Reply, news: RequestOutput, draft: DraftTree, logits: torch.Tensor, rows: Sequence[int], at: float
) -> Followed:
    """Let a reply go on for as long as it says what was drafted.

    Args:
        reply: which has taken the step's first token.
        news: that gave.
        draft: what was computed beyond.
        logits: float32 (rows, vocab), of the step.
        rows: for each node of the draft, its row of the logits.
        at: when the step ended.
    """
    nodes: list[int] = []
    while news.finish_reason is None:
        node = draft.child(nodes[-1] if nodes else -1, news.token_ids[-1])
        if node is None:
            break
        result = sample(logits[rows[node] : rows[node] + 1], [reply.sample_row(0)])[0]
        if result.error is not None:
            break  # the token is computed once more by itself, and fails there as it would have
        nodes.append(node)
        news = news.followed_by(reply.push(result.token_id, result.logprobs, at))
    return Followed(news, nodes)
