"""A recorded tree of thoughts: a search for arithmetic that makes 24 of four numbers, call by call.

The log is that of Yao et al. 2023 (Tree of Thoughts, github.com/princeton-nlp/tree-of-thought-llm). It notes of every
step the partial solutions that were kept, the proposals that came of them, and each proposal's value. Its search makes
two kinds of calls, and so does this workload, at the same places of the tree:

- a proposal for each partial solution: a worked example and the numbers that are left (once 24 is left: the steps so
  far, for the answer they make). Its recorded reply is the log's lines.
- three values of each different proposal: several worked examples and the numbers that are left (or the answer). The
  log adds three verdicts up, worth 20, 1 and 0.001, so they can be told from the sum. It does not keep the reasoning
  before a verdict: the recorded reply is the verdict alone. Where a sum lacks a verdict, the model says two tokens.

The log has no prompts. These say the same in other words, at about the length of the original ones. A value waits for
its proposal, the next step's proposals for the last value of the step before. It knows texts and a tokenizer; nothing
of engines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from mainstem.bench.workload import Call, Workload
from mainstem.errors import ConfigError
from mainstem.tokens import TokenArray, Tokenizer

NUM_VALUES = 3
VERDICT_VALUES = {"sure": 20.0, "likely": 1.0, "impossible": 0.001}
UNRECORDED_REPLY_TOKENS = 2

PROPOSE = """Numbers: 3 3 8 9
Steps that can come next:
3 + 3 = 6 (left: 6 8 9)
3 * 3 = 9 (left: 8 9 9)
8 - 3 = 5 (left: 3 5 9)
9 / 3 = 3 (left: 3 3 8)
9 - 8 = 1 (left: 1 3 3)
9 - 3 = 6 (left: 3 6 8)
3 * 8 = 24 (left: 3 9 24)
Numbers: {numbers}
Steps that can come next:
"""
ANSWER = """Join the steps into one expression that uses each of the four numbers once and makes 24.
Numbers: 2 3 5 12
Steps:
12 / 2 = 6 (left: 3 5 6)
5 - 3 = 2 (left: 2 6)
2 + 6 = 8 (left: 8)
Answer: (5 - 3) + (12 / 2) = 8
Numbers: 1 4 6 8
Steps:
6 - 4 = 2 (left: 1 2 8)
1 + 2 = 3 (left: 3 8)
3 * 8 = 24 (left: 24)
Answer: (1 + (6 - 4)) * 8 = 24
Numbers: {numbers}
Steps:
{steps}"""
VALUE = """Can these numbers still make 24? Judge: sure, likely or impossible.
4 6
4 * 6 = 24
sure
5 9
5 + 9 = 14
5 * 9 = 45
9 - 5 = 4
impossible
3 4 4
3 * 4 = 12, 12 + 4 = 16
4 + 4 = 8, 8 * 3 = 24
sure
7 8 9
7 + 8 + 9 = 24
sure
10 11 12
10 + 11 + 12 = 33
(12 - 10) * 11 = 22
these come close and there is more to try
likely
5 6 6
5 + 6 + 6 = 17
(6 - 5) * 6 = 6
5 * 6 - 6 = 24
sure
9 10 10
9 + 10 + 10 = 29
10 - 9 + 10 = 11
all of these are far off
impossible
1 2 2
(1 + 2) * 2 = 6
all of these are too small
impossible
{numbers}
"""
VALUE_ANSWER = """Does the answer use each number once and make 24? Judge: sure or impossible.
Numbers: 2 3 4 8
Answer: (8 - 4 + 2) * 3 = 18
Judge:
impossible
Numbers: 1 4 6 8
Answer: (1 + (6 - 4)) * 8 = 24
Judge:
sure
Numbers: 3 5 6 8
Answer: 3 * 8 = 24
Judge:
impossible
Numbers: {numbers}
{answer}
Judge:
"""

Step: TypeAlias = dict[str, Any]


class _Prompted(NamedTuple):
    """A call before it is tokens; `after` counts calls of the same problem, `reply` is None where none is recorded."""

    turn: int
    after: int | None
    prompt: str
    reply: str | None


def game24(log: Path, tokenizer: Tokenizer, *, problems: int = 10, first: int = 0) -> Workload:
    """Replay the search of `problems` problems of the log, from the `first`; they run side by side.

    Raises:
        ConfigError: when the log cannot be read, or has not that many problems.
    """
    recorded = _read(log)
    if not 0 <= first < first + problems <= len(recorded):
        raise ConfigError(f"{log.name} has {len(recorded)} problems; {problems} from number {first} are not there")
    calls: list[Call] = []
    known: dict[str, TokenArray] = {}

    def encode(text: str, *, as_prompt: bool) -> TokenArray:
        if text not in known:
            known[text] = tokenizer.encode_prompt(text) if as_prompt else tokenizer.encode(text)
        return known[text]

    for session, problem in enumerate(recorded[first : first + problems]):
        before = len(calls)
        for turn, after, prompt, text in _calls_of(problem):
            reply = None if text is None else encode(text, as_prompt=False)
            calls.append(
                Call(
                    session=session,
                    turn=turn,
                    after=None if after is None else before + after,
                    extends=False,
                    appended=encode(prompt, as_prompt=True),
                    reply_tokens=UNRECORDED_REPLY_TOKENS if reply is None else len(reply),
                    reply=reply,
                )
            )
    settings: dict[str, object] = {"log": log.name, "problems": problems, "first": first}
    return Workload(name="game24", settings=settings, calls=tuple(calls), vocab_size=tokenizer.vocab_size)


def _read(log: Path) -> list[list[Step]]:
    try:
        return [problem["steps"] for problem in json.loads(log.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{log} is no log of a tree of thoughts: {error}") from None


def _calls_of(steps: Sequence[Step]) -> Iterator[_Prompted]:
    """The calls of one problem, in an order in which each comes after those that it waits for."""
    count = 0
    last: int | None = None  # the last value of the step before
    for depth, step in enumerate(steps):
        numbers = step["x"]
        proposals: dict[str, int] = {}  # which call made each of them
        for solution in dict.fromkeys(step["ys"]):
            lines = [new[len(solution) :].strip() for new in step["new_ys"] if new.startswith(solution)]
            yield _Prompted(2 * depth + 1, last, _propose_prompt(numbers, solution), "\n".join(lines) or None)
            proposals |= {f"{solution}{line}\n": count for line in lines}
            count += 1
        judged: set[str] = set()
        for proposal, value in zip(step["new_ys"], step["values"], strict=True):
            if proposal in judged:
                continue  # the search asks once for equal proposals
            judged.add(proposal)
            for verdict in _verdicts(value):
                yield _Prompted(2 * depth + 2, proposals[proposal], _value_prompt(numbers, proposal), verdict)
                count += 1
        last = count - 1


def _propose_prompt(numbers: str, solution: str) -> str:
    left = _left(solution) or numbers
    return ANSWER.format(numbers=numbers, steps=solution) if left == "24" else PROPOSE.format(numbers=left)


def _value_prompt(numbers: str, proposal: str) -> str:
    left = _left(proposal)
    if left is None:
        return VALUE_ANSWER.format(numbers=numbers, answer=proposal.strip().splitlines()[-1])
    return VALUE.format(numbers=left)


def _left(solution: str) -> str | None:
    """The numbers that its last step leaves."""
    last = solution.strip().rpartition("\n")[2]
    return last.partition("(left: ")[2].partition(")")[0] or None


def _verdicts(value: float) -> list[str | None]:
    """The verdicts that add up to a value; None for those that were none of the three words."""
    verdicts: list[str | None] = []
    for word, worth in VERDICT_VALUES.items():
        times = int(value / worth + 1e-6)
        verdicts += [word] * times
        value -= times * worth
    return (verdicts + [None] * NUM_VALUES)[:NUM_VALUES]
