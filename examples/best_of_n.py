"""Best of n: many replies to one conversation, of which the model's own likelihoods choose one.

All replies are branches of one context and are generated in the same steps. Each is then judged twice: by the mean
log-probability of its own tokens, and by how much likelier the model finds "Yes" than "No" when asked whether it is a
good answer. For the first measure alone, `n` of SamplingParams or `best_of` over HTTP do the same with less to write.

    python examples/best_of_n.py --n 16 --question "What is a glacier?"
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from mainstem import LLM, Branch, SamplingParams

GUIDE = """You answer questions for the visitors of a natural history museum. Visitors are of every age, so use plain
words and short sentences. Say one thing that can be seen in the halls: the whale skeleton is in hall 1, the stones and
crystals in hall 2, the insects in hall 3, the map of rivers and glaciers in hall 4. Never guess a number; leave it out
if you are not sure. Do not speak of prices and opening hours, the desk does that. One or two sentences are enough."""
VERDICT = "\nIs this a good answer for a visitor? Answer Yes or No:"


class Candidate(NamedTuple):
    """A reply, the mean log-probability of its tokens, and the log-odds that the model calls it good."""

    text: str
    mean_logprob: float
    verdict: float


def candidates(llm: LLM, context: Branch, options: argparse.Namespace) -> list[Candidate]:
    """`n` replies and what the model thinks of them."""
    branches = [context.fork() for _ in range(options.n)]
    params = [
        SamplingParams(
            max_tokens=options.max_tokens, temperature=0.9, top_p=0.95, seed=options.seed + index, logprobs=0
        )
        for index in range(options.n)
    ]
    replies = llm.generate_branches(branches, params)
    judges = [branch.append(VERDICT) for branch in branches]
    scores = llm.score_branches([judge for judge in judges for _ in range(2)], [" Yes", " No"] * len(judges))
    for branch in branches:
        branch.drop()
    return [
        Candidate(
            text=" ".join(reply.text.split()),
            mean_logprob=fmean(position.chosen.logprob for position in reply.logprobs),
            verdict=yes.total - no.total,
        )
        for reply, yes, no in zip(replies, scores[::2], scores[1::2], strict=True)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Generate, judge, choose, and say what was shared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="name or path of the model")
    parser.add_argument("--question", default="Why do rivers bend?", help="what the visitor asks")
    parser.add_argument("--n", type=int, default=16, help="how many replies")
    parser.add_argument("--max-tokens", type=int, default=40, help="most tokens of a reply")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    messages = [{"role": "system", "content": GUIDE}, {"role": "user", "content": options.question}]
    with LLM(options.model) as llm:
        with llm.context(messages) as context:
            found = candidates(llm, context, options)
        print("log-prob  verdict  reply")
        for text, mean, verdict in sorted(found, key=lambda candidate: candidate.mean_logprob, reverse=True):
            print(f"{mean:8.2f} {verdict:+8.2f}  {text[:100]}")
        print(f"\nlikeliest: {max(found, key=lambda candidate: candidate.mean_logprob).text}")
        print(f"best by verdict: {max(found, key=lambda candidate: candidate.verdict).text}\n")
        print(llm.sharing())


if __name__ == "__main__":
    main()
