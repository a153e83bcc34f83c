"""Logs of an agent's requests, to be changed in one place by each test."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mainstem.lint import Finding, Level, LintResult, Sizes, lint_conversations, read

Body = dict[str, Any]
# What is in every prompt and has the look of what changes: a policy with a date, a version, a path, an id.
POLICY = "Policy of 2024-05-01 (v2.3.1, /etc/policy.md, 9f8b1c1e-6a54-4f0e-9f55-0a1d8b7a6c21): never delete files."


def tool(name: str, **properties: Any) -> Body:
    schema = {"type": "object", "properties": properties or {"path": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": f"To {name}.", "parameters": schema}}


TOOLS = [tool("read"), tool("run", command={"type": "string"}), tool("write")]


def step(number: int) -> list[Body]:
    """What one turn adds: a call of the model's, and its result."""
    call = {"name": "run", "arguments": json.dumps({"command": f"pytest -k case_{number}", "timeout": 60})}
    return [
        {
            "role": "assistant",
            "content": f"I try the case of number {number}, for it failed in the run before.",
            "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}],
        },
        {
            "role": "tool",
            "tool_call_id": f"c{number}",
            "content": f"case {number}: passed at 10:0{number}\n" + f"a line of output {number}\n" * 12,
        },
    ]


def messages(turns: int) -> list[Body]:
    """A history of so many turns."""
    said: list[Body] = [
        {"role": "system", "content": f"You repair code.\n{POLICY}\nAnswer briefly."},
        {"role": "user", "content": "The test of dates fails since 2026-11-12. Please repair it."},
    ]
    for number in range(turns):
        said += step(number)
    return said


def conversation(turns: int = 4, change: Callable[[int, Body], None] | None = None) -> list[Body]:
    """The requests of an agent; `change` is given each one with its number."""
    bodies = []
    for turn in range(turns):
        body: Body = json.loads(json.dumps({"model": "m", "messages": messages(turn + 1), "tools": TOOLS}))
        if change is not None:
            change(turn, body)
        bodies.append(body)
    return bodies


def write(folder: Path, values: Sequence[Any], name: str = "requests.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values), encoding="utf-8")
    return path


def lint(folder: Path, values: Sequence[Any]) -> LintResult:
    """Lint a file of these lines, with a token for each character."""
    return lint_conversations(read([write(folder, values)]).conversations, Sizes(len))


def only(result: LintResult) -> Finding:
    """The one alarm."""
    assert [finding.level for finding in result.findings] == [Level.ALARM], result.findings
    return result.findings[0]
