"""How far an uncertain end bit can go: the tree, and policies that are not in it, on a recorded trace.

    python -m benchmarks.bench_end_bit conversation_trace.jsonl --out benchmarks/results/trace/end_bit.json

As in `mainstem bench trace --end-bits 90`, each request says whether it is the last of its conversation and is wrong
with a chance of `--wrong`; `--seeds` draws of the errors are replayed. Beside the tree itself a model of it is run, in
which what a request used last is one group of blocks that is evicted from its end, so that other orders of eviction
can be tried. None of them looks ahead: at a request they know what came before it, and what they learn, they learn
again every 200 requests. They share the form and the limits of their features, though, and those were chosen on the
Mooncake conversation trace.

- **tree**: the radix tree as it is.
- **rules**: the model with two of the tree's rules: ended conversations first, then the least recently used.
- **ends**: rules, and the last block of each prompt first, since it is rewritten in the next; of what a prompt brought
  anew, an age counts as much more as prompts like it were seldom gone on from when their conversation came back.
- **hazards**: ends, with the best rate of hits per block and request ahead, from returns counted by bit and age.
- **regression**: the same rate, from a Poisson regression of returns on bit, age, turn, size and previous pause.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.measuring import keep
from mainstem.bench.trace import BlockTrace, EndBit, read_traces
from mainstem.bench.trace.sessions import find_turns, hits_with_end_bit

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Bits: TypeAlias = npt.NDArray[np.bool_]

AGES = np.array([0, 50, 100, 150, 200, 300, 400, 600, 800, 1000, 1300, 1700, 2200, 3000, 4500, 20000])
"""Limits of the ages, in requests, in which returns are counted apart."""
WIDTHS = np.diff(AGES).astype(float)
NUM_AGES = len(WIDTHS)
NEW_BLOCKS = (6, 12, 25)
"""Limits of how much a prompt brought anew."""
NEVER = 10**9
LEARN_EVERY = 200
RIDGE = 5.0
"""Strength of the regression's prior."""
HEAD, NEW, LAST = range(3)
"""Parts of a prompt: blocks that were known, those it brought, and of these the last one."""

Rates: TypeAlias = Callable[[int], Floats]
"""Of each request, by age: returns expected per request of waiting, as known at a request."""


class Facts(NamedTuple):
    """What is known of each request when it has come, but for `returns` and `kept`, known when its session returns.

    Attributes:
        previous: the request before it in its conversation, -1 for none.
        turn: from 1.
        tokens: of its prompt.
        new: blocks that no prompt had before.
        pause: requests since the previous one; 0 at the first turn.
        parted: whether the latest return of its conversation left more than the last block; -1 for not known.
        returns: the next request of its conversation; `NEVER` for none.
        kept: that one goes on from all but its last block.
    """

    previous: Ints
    turn: Ints
    tokens: Ints
    new: Ints
    pause: Ints
    parted: Ints
    returns: Ints
    kept: Bits


def facts_of(trace: BlockTrace, sessions: Iterable[int]) -> Facts:
    """The facts of a trace, gathered in its order."""
    num = len(trace.requests)
    none, zero = (partial(np.full, num, value, np.int64) for value in (-1, 0))
    facts = Facts(none(), zero() + 1, zero(), zero(), zero(), none(), zero() + NEVER, np.zeros(num, np.bool_))
    latest: dict[int, int] = {}
    seen = 0
    for index, (request, session) in enumerate(zip(trace.requests, sessions, strict=True)):
        facts.tokens[index] = request.tokens
        facts.new[index] = int((request.blocks >= seen).sum())
        seen += int(facts.new[index])
        before = latest.get(session)
        if before is not None:
            facts.previous[index] = before
            facts.turn[index] = facts.turn[before] + 1
            facts.pause[index] = index - before
            facts.returns[before] = index
            earlier = trace.requests[before].blocks
            facts.kept[before] = _common(earlier, request.blocks) >= len(earlier) - 1
            facts.parted[index] = not facts.kept[before]
        latest[session] = index
    return facts


def _common(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> int:
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length


# -- what is learnt -------------------------------------------------------------------------------------------------


def learn_kept(facts: Facts, now: int) -> Floats:
    """Of each request, how likely a return goes on from what it brought: counted by parting and size, before `now`."""
    kind = (facts.parted + 1) * (len(NEW_BLOCKS) + 1) + np.searchsorted(NEW_BLOCKS, facts.new, side="right")
    num = 3 * (len(NEW_BLOCKS) + 1)
    back = facts.returns[:now] <= now
    cases = np.bincount(kind[:now][back], minlength=num)
    kept = np.bincount(kind[:now][back], facts.kept[:now][back], num)
    share: Floats = ((kept + 4.5) / (cases + 5))[kind]
    return share


def hazards(facts: Facts, ends: Bits) -> Rates:
    """Returns by what the request said and its age, with a prior worth three returns at each age."""
    prior = np.array([1 / 600] * 8 + [1 / 1500] * (NUM_AGES - 8))
    priors = np.vstack([prior, prior / 10])
    said = ends.astype(int)

    def rates(now: int) -> Floats:
        index = np.arange(now)
        waited = np.minimum(facts.returns[:now], now) - index
        exposure = np.zeros((2, NUM_AGES))
        np.add.at(exposure, said[:now], np.clip(waited[:, None] - AGES[None, :-1], 0, WIDTHS[None, :]))
        back = facts.returns[:now] <= now
        returned = np.zeros((2, NUM_AGES))
        np.add.at(returned, (said[:now][back], np.searchsorted(AGES, waited[back], side="right") - 1), 1)
        found: Floats = ((returned + 3.0) / (exposure + 3.0 / priors))[said]
        return found

    return rates


def features(facts: Facts, ends: Bits, index: Ints, age: Ints) -> Floats:
    """What the regression knows of requests at an age."""
    middle = np.log(np.sqrt((AGES[:-1] + 25) * (AGES[1:] + 25)))[age] - 6.0
    said = ends[index].astype(float)
    first = (facts.turn[index] == 1).astype(float)
    turn = np.log(facts.turn[index])
    size = np.log(facts.tokens[index]) - 8.0
    pause = np.where(first == 1, 0.0, np.log(facts.pause[index] + 1.0) - 6.0)
    late = np.where(first == 1, 0.0, middle - pause)
    columns = [said, said * middle, said * middle**2, turn, first, size, size**2, pause, np.abs(late)]
    columns += [np.maximum(late, 0), first * middle, facts.parted[index] == 1, said * turn]
    return np.column_stack([np.eye(NUM_AGES)[age], *columns])


def regression(facts: Facts, ends: Bits) -> Rates:
    """Rates of return as a log-linear model of `features`, fitted to what is known by Newton's method."""
    num = len(facts.turn)
    everyone = np.arange(num)
    reached = np.minimum(facts.returns, num) - everyone
    index, age = np.nonzero(reached[:, None] > AGES[None, :-1])
    table = features(facts, ends, index, age)
    start = index + AGES[age]
    prior = np.zeros(table.shape[1])
    prior[:NUM_AGES], prior[NUM_AGES] = -6.5, -2.5
    weights = prior.copy()

    def fit(now: int, steps: int) -> None:
        known = start < now
        rows, at, of = table[known], age[known], index[known]
        back = (facts.returns[of] - of < AGES[at + 1]) & (facts.returns[of] <= now)
        exposure = np.clip(np.minimum(facts.returns[of], now) - of - AGES[at], 1, WIDTHS[at])
        for _ in range(steps):
            expected = exposure * np.exp(np.clip(rows @ weights, -20, 0))
            slope = rows.T @ (back - expected) - RIDGE * (weights - prior)
            curvature = (rows * expected[:, None]).T @ rows + RIDGE * np.eye(len(weights))
            weights[:] += np.clip(np.linalg.solve(curvature, slope), -1.5, 1.5)

    def rates(now: int) -> Floats:
        if now:
            fit(now, 12 if now < 2000 else 4)
        by_age = [features(facts, ends, everyone, np.full(num, at)) @ weights for at in range(NUM_AGES)]
        return np.exp(np.clip(np.column_stack(by_age), -20, 0))

    return rates


def best_rate(rates: Floats) -> Floats:
    """By age, the most returns per request of waiting that keeping a group for some time gives (Gittins' index)."""
    best = np.zeros_like(rates)
    survives = np.exp(-rates * WIDTHS)
    for age in range(NUM_AGES):
        alive, returned, waited = (np.full(len(rates), value) for value in (1.0, 0.0, 0.0))
        for later in range(age, NUM_AGES):
            gone = alive * (1 - survives[:, later])
            returned, waited = returned + gone, waited + gone / rates[:, later]
            alive = alive * survives[:, later]
            best[:, age] = np.maximum(best[:, age], returned / waited)
    return best


# -- the model of the tree ------------------------------------------------------------------------------------------


class Worth:
    """What groups are worth, the least valuable to go first.

    Args:
        facts: of the trace.
        ends: what each request says.
        splits: whether parts of a prompt are told apart.
        rates: None for ended ones first, then the least recently used.
    """

    def __init__(self, facts: Facts, ends: Bits, splits: bool = True, rates: Rates | None = None) -> None:
        self.splits = splits
        self._facts, self._ends, self._rates = facts, ends, rates
        self._kept = np.ones(len(ends))
        self._best: Floats = np.zeros((len(ends), NUM_AGES))

    def learn(self, now: int) -> None:
        """Take in what is known by now."""
        if self.splits:
            self._kept = learn_kept(self._facts, now)
        if self._rates is not None:
            upto = now + LEARN_EVERY
            distinct, which = np.unique(self._rates(now)[:upto], axis=0, return_inverse=True)
            self._best[:upto] = best_rate(distinct)[which.ravel()]

    def of(self, request: Ints, part: Ints, now: int) -> Floats:
        """Worth of parts of requests."""
        kept = np.where(part == NEW, self._kept[request], 1.0)
        if self._rates is None:
            worth = -(now - request) / kept - 1e6 * self._ends[request]
        else:
            worth = kept * self._best[request, np.searchsorted(AGES, now - request, side="right") - 1]
        over = (part == LAST) | (self._facts.returns[request] <= now)
        return np.where(over, -1e9, worth)


def replay(trace: BlockTrace, facts: Facts, worth: Worth, capacity: int) -> Iterator[int]:
    """Hits of the model, in blocks, one request after another."""
    owner = np.full(trace.distinct, -1, np.int64)
    groups: dict[int, npt.NDArray[Any]] = {}
    used = 0
    for now, request in enumerate(trace.requests):
        if now % LEARN_EVERY == 0:
            worth.learn(now)
        blocks = request.blocks
        found = owner[blocks]
        cached = found >= 0
        yield len(blocks) if cached.all() else int(np.argmin(cached))
        for group in np.unique(found[cached]).tolist():
            rest = groups[group][~np.isin(groups[group], blocks)]
            used -= len(groups[group]) - len(rest)
            groups[group] = rest
            if not len(rest):
                del groups[group]
        used -= _make_room(owner, groups, worth, now, len(blocks) - (capacity - used))
        used += len(blocks)
        known = len(blocks) - int(facts.new[now]) if worth.splits else len(blocks)
        last = len(blocks) - (worth.splits and known < len(blocks))
        for part, (start, stop) in enumerate(((0, known), (known, last), (last, len(blocks)))):
            if start < stop:
                groups[3 * now + part] = blocks[start:stop]
                owner[blocks[start:stop]] = 3 * now + part


def _make_room(owner: Ints, groups: dict[int, npt.NDArray[Any]], worth: Worth, now: int, wanted: int) -> int:
    """Evict so many blocks, the least valuable group first, from its end."""
    if wanted <= 0:
        return 0
    evicted = 0
    names = np.fromiter(groups, np.int64, len(groups))
    request, part = names // 3, names % 3
    for group in names[np.lexsort((-part, request, worth.of(request, part, now)))].tolist():
        blocks = groups.pop(group)
        goes = min(wanted - evicted, len(blocks))
        owner[blocks[len(blocks) - goes :]] = -1
        evicted += goes
        if goes < len(blocks):
            groups[group] = blocks[:-goes]
        if evicted == wanted:
            break
    return evicted


# -- the command ----------------------------------------------------------------------------------------------------

POLICIES = ("tree", "rules", "ends", "hazards", "regression")


class Case(NamedTuple):
    """What one process replays."""

    file: Path
    policy: str
    right: float
    seed: int


@cache
def _read(file: Path) -> tuple[BlockTrace, Facts, tuple[bool, ...]]:
    trace = read_traces([file])
    turns = find_turns(trace)
    return trace, facts_of(trace, [turn.session for turn in turns]), tuple(turn.is_last for turn in turns)


def run_case(case: Case) -> float:
    """Share of the prompt tokens that hit."""
    trace, facts, is_last = _read(case.file)
    capacity = int(trace.distinct * 0.05)
    bit = EndBit(case.right)
    if case.policy == "tree":
        hits = hits_with_end_bit(trace, find_turns(trace), bit, capacity, case.seed)
    else:
        draw = random.Random(case.seed)
        ends = np.array([bit.says(last, draw.random()) for last in is_last])
        hits = replay(trace, facts, worth_of(case.policy, facts, ends), capacity)
    return sum(trace.tokens_in(hit, request) for hit, request in zip(hits, trace.requests, strict=True)) / trace.tokens


def worth_of(policy: str, facts: Facts, ends: Bits) -> Worth:
    """How a policy of the model ranks groups."""
    rates = {"hazards": hazards, "regression": regression}.get(policy)
    return Worth(facts, ends, policy != "rules", None if rates is None else rates(facts, ends))


def returns_by_turn(facts: Facts) -> dict[str, dict[str, float]]:
    """How many prompts of each turn there are, and which share of them another one follows."""
    found = {}
    for turn in range(1, 11):
        back = facts.returns[facts.turn == turn] < NEVER
        found[str(turn)] = {"prompts": len(back), "returned": round(float(back.mean()), 3)} if len(back) else {}
    return found


def main() -> int:
    """Replay every policy on every draw of the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a hash trace")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--seeds", type=int, default=12, help="draws of the errors [default: 12]")
    parser.add_argument("--wrong", default="0.1", help="chances of an error, with commas [default: 0.1]")
    parser.add_argument("--policies", default=",".join(POLICIES), help="which of them [default: all]")
    parser.add_argument("--processes", type=int, default=1, help="side by side [default: 1]")
    arguments = parser.parse_args()

    policies = arguments.policies.split(",")
    chances = [float(chance) for chance in arguments.wrong.split(",")]
    cases = [
        Case(arguments.file, policy, 1 - wrong, seed)
        for policy in policies
        for wrong in chances
        for seed in range(arguments.seeds)
    ]
    shares: dict[str, dict[str, list[float]]] = {policy: {} for policy in policies}
    with ProcessPoolExecutor(arguments.processes) as pool:
        for case, share in zip(cases, pool.map(run_case, cases), strict=True):
            shares[case.policy].setdefault(f"{1 - case.right:g}", []).append(round(share, 4))
            print(f"{case.policy}, wrong in {1 - case.right:.0%}, seed {case.seed}: {share:.4f}", flush=True)
    document = {
        "token_hit_ratio by policy, chance of an error, seed": shares,
        "returns by turn": returns_by_turn(_read(arguments.file)[1]),
    }
    print(json.dumps(document, indent=2))
    keep(arguments.out, document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
