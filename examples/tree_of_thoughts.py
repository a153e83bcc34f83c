"""Tree of thoughts: the game of 24, by breadth-first search over branches.

Make 24 of four numbers. A thought is one line, such as "4 * 5 = 20 (left: 6 10 20)". At every depth, branches of all
kept partial solutions propose the beginnings of lines at once, such as "4 * 5"; the program reckons and writes the
rest. Every different legal line becomes a branch; the model values each of them by how much likelier it finds "sure"
than "impossible"; the best few are kept and all others dropped.

A small model seldom proposes anything legal, so `--moves` random legal lines join in at every branch. The search is
after Yao et al. 2023, Tree of Thoughts. It shows how a search runs over shared context, not how well a model reckons.

    python examples/tree_of_thoughts.py --numbers 4 5 6 10 --breadth 4
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from typing import NamedTuple

from mainstem import LLM, Branch, SamplingParams

TASK = """Make 24 of four numbers in three steps. Each step joins two of the numbers that are left.

Numbers: 3 3 8 9
9 - 3 = 6 (left: 3 6 8)
6 - 3 = 3 (left: 3 8)
3 * 8 = 24 (left: 24)

Numbers: 1 4 6 8
6 - 4 = 2 (left: 1 2 8)
1 + 2 = 3 (left: 3 8)
3 * 8 = 24 (left: 24)

Numbers: 2 5 6 12
12 / 6 = 2 (left: 2 2 5)
2 * 5 = 10 (left: 2 10)
2 + 10 = 12 (left: 12)
impossible, 24 is not left

Numbers: 2 3 4 12
12 / 3 = 4 (left: 2 4 4)
4 * 4 = 16 (left: 2 16)
2 + 16 = 18 (left: 18)
impossible, 24 is not left

Numbers: 5 6 7 12
7 - 5 = 2 (left: 2 6 12)
2 * 6 = 12 (left: 12 12)
12 + 12 = 24 (left: 24)

Numbers: {numbers}
"""
JUDGE = "Judge whether 24 can still be made:"
VERDICTS = (" sure", " impossible")


@dataclass(frozen=True, slots=True)
class Thought:
    """A partial solution: its branch, the numbers that are left, its lines, and what the model thinks of it."""

    branch: Branch
    left: tuple[Fraction, ...]
    lines: tuple[str, ...]
    value: float = 0.0


class Move(NamedTuple):
    """A line, and the numbers that are left after it."""

    line: str
    left: tuple[Fraction, ...]


def moves(left: Sequence[Fraction]) -> dict[str, Move]:
    """Every legal move, by the beginning of its line."""
    found: dict[str, Move] = {}
    for first, second in permutations(range(len(left)), 2):
        a, b = left[first], left[second]
        rest = [number for index, number in enumerate(left) if index not in (first, second)]
        results = [("+", a + b), ("-", a - b), ("*", a * b)] + ([("/", a / b)] if b else [])
        for sign, result in results:
            after = tuple(sorted([*rest, result]))
            line = f"{a} {sign} {b} = {result} (left: {' '.join(map(str, after))})"
            found[f"{a} {sign} {b}"] = Move(line, after)
    return found


def proposals(llm: LLM, kept: Sequence[Thought], samples: int, seed: int) -> list[list[str]]:
    """For each thought, what the model says in `samples` branches of it, all generated together."""
    forks = [thought.branch.fork() for thought in kept for _ in range(samples)]
    params = [
        SamplingParams(max_tokens=10, temperature=0.7, stop=("=", "\n"), seed=seed + index)
        for index in range(len(forks))
    ]
    replies = llm.generate_branches(forks, params)
    for fork in forks:
        fork.drop()
    texts = [reply.text.strip() for reply in replies]
    return [texts[first : first + samples] for first in range(0, len(texts), samples)]


def expand(kept: Sequence[Thought], said: Sequence[Sequence[str]], extra: int, rng: random.Random) -> Iterator[Thought]:
    """A new branch for every different legal move: those that were said, and `extra` others of each thought."""
    for thought, beginnings in zip(kept, said, strict=True):
        legal = moves(thought.left)
        chosen = dict.fromkeys(beginning for beginning in beginnings if beginning in legal)
        others = [beginning for beginning in legal if beginning not in chosen]
        for beginning in [*chosen, *rng.sample(others, min(extra, len(others)))]:
            line, left = legal[beginning]
            yield Thought(thought.branch.fork().append(f"{line}\n"), left, (*thought.lines, line))


def valued(llm: LLM, thoughts: Sequence[Thought]) -> list[Thought]:
    """The thoughts with their values, all scored together: log-odds of the first verdict against the second."""
    judges = [thought.branch.fork().append(JUDGE) for thought in thoughts]
    scores = llm.score_branches([judge for judge in judges for _ in VERDICTS], VERDICTS * len(judges))
    for judge in judges:
        judge.drop()
    values = [sure.total - impossible.total for sure, impossible in zip(scores[::2], scores[1::2], strict=True)]
    return [
        Thought(thought.branch, thought.left, thought.lines, value)
        for thought, value in zip(thoughts, values, strict=True)
    ]


def search(llm: LLM, options: argparse.Namespace) -> list[Thought]:
    """The thoughts that are left at the end, best first. They are the caller's to drop."""
    rng = random.Random(options.seed)
    numbers = tuple(Fraction(number) for number in options.numbers)
    context = llm.context(TASK.format(numbers=" ".join(map(str, numbers))))
    kept = [Thought(context, numbers, ())]
    for depth in range(1, len(numbers)):
        said = proposals(llm, kept, options.samples, options.seed + 1000 * depth)
        candidates = valued(llm, list(expand(kept, said, options.moves, rng)))
        candidates.sort(key=lambda thought: thought.value, reverse=True)
        legal = sum(text in moves(thought.left) for thought, texts in zip(kept, said, strict=True) for text in texts)
        for thought in [*kept, *candidates[options.breadth :]]:
            thought.branch.drop()
        kept = candidates[: options.breadth]
        print(f"depth {depth}: {len(candidates)} thoughts, {len(kept)} kept, {legal} proposals of the model were legal")
        for thought in kept:
            print(f"  {thought.value:+6.2f}  {thought.lines[-1]}")
    return kept


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the search and say what it shared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="name or path of the model")
    parser.add_argument("--numbers", type=int, nargs="+", default=[4, 5, 6, 10], help="what to make 24 of")
    parser.add_argument("--breadth", type=int, default=4, help="partial solutions kept at each depth")
    parser.add_argument("--samples", type=int, default=4, help="proposals of the model for each of them")
    parser.add_argument("--moves", type=int, default=6, help="random legal lines that join them")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with LLM(options.model) as llm:
        found = search(llm, options)
        solved = [thought for thought in found if thought.left == (Fraction(24),)]
        print(f"{len(solved)} of {len(found)} kept solutions make 24")
        for thought in solved:
            print("  " + "; ".join(thought.lines))
        print()
        print(llm.sharing())
        for thought in found:
            thought.branch.drop()


if __name__ == "__main__":
    main()
