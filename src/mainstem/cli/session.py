"""The coding-agent session that `mainstem demo` plays: ten turns of a small bug hunt, cut to a wanted length.

The texts in `demo_session/` are what really happened in a small repository written for this purpose: its files, its
failing tests, its history. Knows messages and how many tokens they should come to; knows no model and no HTTP. Each
reply is to call the tool that was recorded next, and the tools' answers are the recorded ones whatever arguments the
model gives, so that every run has the same shape.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from mainstem.errors import ConfigError, MainstemError

TURNS = 10
MIN_TOKENS, MAX_TOKENS = 2000, 8000

Message = dict[str, Any]


class Step(NamedTuple):
    """What the agent has just done when a turn begins, and the text that this adds to the conversation.

    Attributes:
        does: for the table, such as "runs the tests".
        tool: that the text is the result of; None for the task itself.
        before: lines that are always sent.
        body: lines that may be cut to fit.
    """

    does: str
    tool: str | None
    before: str
    body: str

    def cut(self, lines: int) -> str:
        """The step's text with only the first `lines` lines of its body, and a note when that is not all."""
        kept = self.body.splitlines(keepends=True)
        left_out = len(kept) - lines
        note = f"[... {left_out} more lines]\n" if left_out > 0 else ""
        return self.before + "".join(kept[:lines]) + note


class AgentSession:
    """Builds the conversation turn by turn, so that the prompts grow evenly to about `tokens` at turn ten.

    Args:
        tokens: wanted length of the last prompt.
        count: number of tokens of a conversation with the tools, as the model's chat template renders it.

    Raises:
        ConfigError: when the recorded texts cannot make a session of that length.
    """

    def __init__(self, tokens: int, count: Callable[[Sequence[Message]], int]) -> None:
        if not MIN_TOKENS <= tokens <= MAX_TOKENS:
            raise ConfigError(f"--tokens must be between {MIN_TOKENS} and {MAX_TOKENS}, got {tokens}")
        self._count = count
        self._last = tokens
        self._first = tokens // 2
        self._steps = load_steps()
        self.turn = 0
        self.messages: list[Message] = [{"role": "system", "content": _text("system.txt")}]

    @property
    def tool_choice(self) -> str | dict[str, Any]:
        """What this turn's reply may call: the tool that was recorded next, and at the last turn none."""
        if self.turn == TURNS:
            return "none"
        return {"type": "function", "function": {"name": self._steps[self.turn].tool}}

    def ask(self) -> Step:
        """Begin the next turn: append what the agent sends. The conversation so far is in `messages`."""
        step = self._steps[self.turn]
        target = self._first + (self._last - self._first) * self.turn // (TURNS - 1)
        self.messages.append(self._message(step, self._lines_that_fit(step, target)))
        if self.turn == 0:
            self._first = self._count(self.messages)
        self.turn += 1
        return step

    def answer(self, message: Mapping[str, Any]) -> None:
        """End the turn: append what the model replied.

        Raises:
            MainstemError: when it does not call what `tool_choice` asked for.
        """
        if self.turn < TURNS:
            wanted = self._steps[self.turn].tool
            called = [call["function"]["name"] for call in message.get("tool_calls", ())]
            if called != [wanted]:
                raise MainstemError(
                    f"turn {self.turn}: the reply was to call {wanted}, but called {called or 'nothing'}"
                )
        self.messages.append(dict(message))

    def _message(self, step: Step, lines: int) -> Message:
        if step.tool is None:
            return {"role": "user", "content": step.cut(lines)}
        call = self.messages[-1]["tool_calls"][0]
        return {"role": "tool", "tool_call_id": call["id"], "content": step.cut(lines)}

    def _lines_that_fit(self, step: Step, target: int) -> int:
        """Most lines of the step's body, at least one, that keep the conversation within `target` tokens."""
        low, high = 1, len(step.body.splitlines())
        while low < high:
            middle = (low + high + 1) // 2
            if self._count([*self.messages, self._message(step, middle)]) <= target:
                low = middle
            else:
                high = middle - 1
        return low


def load_steps() -> tuple[Step, ...]:
    """The recorded steps, one a turn, uncut."""
    first, *others = json.loads(_text("turns.json"))
    issue = Step(first["does"], None, _text("task.txt") + "\n", _text("repository.txt"))
    return (issue, *(_tool_step(recorded) for recorded in others))


def load_tools() -> list[dict[str, Any]]:
    """The tools of the session, as in Chat Completions.

    Their texts have a longest length, within which a model that knows no end of them still makes a whole call.
    """
    tools: list[dict[str, Any]] = json.loads(_text("tools.json"))
    return tools


def _tool_step(recorded: dict[str, Any]) -> Step:
    # The recorded arguments, since the result is theirs and not that of the model's own.
    called = f"{recorded['tool']} {json.dumps(recorded['arguments'])}\n"
    return Step(recorded["does"], recorded["tool"], called, _text(recorded["result"]))


def _text(name: str) -> str:
    return files("mainstem.cli").joinpath("demo_session", name).read_text(encoding="utf-8")
