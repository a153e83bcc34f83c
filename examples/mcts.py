"""Monte Carlo tree search: find the middle of a story that makes its given ending likely.

A node of the search is a branch: the opening and some phrases after it. Every round walks down by UCT, adds a child
with one more phrase, lets a few rollouts write on from there at once, and scores the ending after each. The reward is
the ending's mean log-probability, mapped to between 0 and 1, and goes to all nodes on the way up. (UCT: Kocsis and
Szepesvári 2006.)

Rollouts are dropped as soon as they are scored, nodes live on; all of them share the opening, and a child shares its
parent's phrases. Some straight samples come first, so that the rewards can be judged.

    python examples/mcts.py --rounds 12
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import fmean

from mainstem import LLM, Branch, SamplingParams

OPENING = """The ferry had crossed the river for sixty years, and for the last ten of them nobody but the old ferryman
had wanted it. There was a bridge now, an hour upstream, and people liked bridges. Every morning he untied the rope,
looked at the empty bank on the other side, and made the crossing anyway, so that the boat would not forget the way.
One evening in autumn, when the fog stood so thick that he could not see his own hands, somebody rang the bell."""
ENDING = " In the morning the bridge was gone, and everybody wanted the ferry again."


@dataclass(slots=True)
class Node:
    """A branch of the search and what came of it."""

    branch: Branch
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    visits: int = 0
    reward: float = 0.0

    @property
    def mean(self) -> float:
        """Mean reward of the rollouts below."""
        return self.reward / self.visits

    def path(self) -> Iterator[Node]:
        """From here to the root."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent


class Search:
    """The tree and how it grows.

    Attributes:
        best: the highest reward of a rollout, and its text after the opening.
    """

    def __init__(self, llm: LLM, options: argparse.Namespace) -> None:
        self.llm = llm
        self.options = options
        self.root = Node(llm.context(OPENING))
        self.best = (0.0, "")
        self._seeds = count(options.seed)

    def round(self) -> None:
        """Select, expand, roll out, score, and give the reward to everyone on the way up."""
        leaf = self._expand(self._select())
        rewards = self._rollouts(leaf.branch, self.options.rollouts)
        for node in leaf.path():
            node.visits += len(rewards)
            node.reward += sum(rewards)

    def sampled(self, number: int) -> list[float]:
        """Rewards of rollouts straight from the opening."""
        return self._rollouts(self.root.branch, number)

    def drop(self) -> None:
        """Let go of every node."""
        pending = [self.root]
        while pending:
            node = pending.pop()
            node.branch.drop()
            pending += node.children

    def _select(self) -> Node:
        node = self.root
        while len(node.children) == self.options.children:
            visits = math.log(node.visits)
            node = max(node.children, key=lambda child: child.mean + 0.3 * math.sqrt(visits / child.visits))
        return node

    def _expand(self, node: Node) -> Node:
        """A child with one more phrase, of a few tokens."""
        branch = node.branch.fork()
        branch.generate(self._params(self.options.phrase))
        child = Node(branch, node)
        node.children.append(child)
        return child

    def _rollouts(self, branch: Branch, number: int) -> list[float]:
        """Write on in several branches at once, and score the ending after each."""
        forks = [branch.fork() for _ in range(number)]
        self.llm.generate_branches(forks, [self._params(self.options.length) for _ in forks])
        scores = self.llm.score_branches(forks, [ENDING] * number)
        rewards = [math.exp(score.mean / 4) for score in scores]
        for fork, reward in zip(forks, rewards, strict=True):
            self.best = max(self.best, (reward, fork.text.removeprefix(self.root.branch.text)))
            fork.drop()
        return rewards

    def _params(self, max_tokens: int) -> SamplingParams:
        return SamplingParams(
            max_tokens=max_tokens, temperature=0.9, top_p=0.95, seed=next(self._seeds), ignore_eos=True
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Search, compare with straight samples, and say what was shared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="name or path of the model")
    parser.add_argument("--rounds", type=int, default=16, help="rounds of the search")
    parser.add_argument("--children", type=int, default=3, help="most children of a node")
    parser.add_argument("--rollouts", type=int, default=4, help="rollouts of a round")
    parser.add_argument("--phrase", type=int, default=8, help="tokens that a child adds")
    parser.add_argument("--length", type=int, default=24, help="tokens of a rollout")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with LLM(options.model) as llm:
        search = Search(llm, options)
        straight = search.sampled(options.rollouts * 2)
        for number in range(1, options.rounds + 1):
            search.round()
            print(f"round {number:2}: mean reward {search.root.mean:.3f}, best {search.best[0]:.3f}")
        print(f"straight samples: mean reward {fmean(straight):.3f}, best {max(straight):.3f}")
        print(f"best middle:{' '.join(search.best[1].split())}\n")
        print(llm.sharing())
        search.drop()


if __name__ == "__main__":
    main()
