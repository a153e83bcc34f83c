"""Runs the examples of docs/agents.md, each in an environment of its own, against a server with the embedded model.

    python -m tests.clients.run [NAME ...]

An environment is made once, in the folder named by `--environments`. Each example must end well, send at least two
requests and get at least one tool call; and each later request must find the exchange before it in the cache, short of
the last token, which was never computed. Where a client changes what it sent, `KNOWN` says how.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import venv
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from mainstem.config import EngineConfig, ServerConfig
from mainstem.server import BackgroundServer
from tests.clients.recording import RecordingEngine, reuse

ROOT = Path(__file__).parents[2]
REQUIREMENTS = {
    "openai": ["openai"],
    "anthropic": ["anthropic"],
    "openai-agents": ["openai-agents"],
    "pydantic-ai": ["pydantic-ai-slim[openai]"],
    "langgraph": ["langgraph", "langchain-openai"],
    "smolagents": ["smolagents[openai]"],
    "autogen": ["autogen-agentchat", "autogen-ext[openai]"],
    "crewai": ["crewai"],
    "mini-swe-agent": ["mini-swe-agent"],
    "aider": ["aider-chat"],
    "llm": ["llm"],
}


def call(name: str, **arguments: str) -> str:
    """A call as the embedded model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


# What the model is made to say first: most of these clients have no way to ask for a call, aider wants a file in its
# own form, and mini-swe-agent runs whatever command it is given.
LINES = {
    "autogen": [call("forecast", city="Oslo")],
    "crewai": [call("forecast", city="Oslo")],
    "mini-swe-agent": [
        call("bash", command="echo Rain in Oslo."),
        call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo Rain."),
    ],
    "aider": ["forecast.txt\n```\nRain in Oslo.\n```\n", "forecast.txt\n```\nRain in Oslo and Bergen.\n```\n"],
    "llm": [call("forecast", city="Oslo")],
}
# What an example prints, where ending without an error is not success yet.
PRINTS = {
    "mini-swe-agent": "Submitted: Rain.",
    "aider": "Rain in Oslo and Bergen.",
}
WITHOUT_TOOLS = {"aider"}  # Its edits are text.
# Why a client's later request does not begin with the exchange before it.
KNOWN = {
    "smolagents": "it sends calls back as text of its own; after its last step it asks anew, without tools",
    "aider": "it shows its files behind the history, which grows in front of them",
}
ADDRESS = "http://127.0.0.1:8000"


class Example(NamedTuple):
    """A program in docs/agents.md."""

    language: str
    text: str


def example(name: str) -> Example:
    """The example under a heading of docs/agents.md."""
    page = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(name)}\n.*?```(python|bash)\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    if found is None:
        raise SystemExit(f"docs/agents.md has no example for {name}")
    return Example(found[1], found[2])


def python_of(name: str, environments: Path) -> Path:
    """The interpreter of the client's environment, which is made if need be."""
    folder = environments / name
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS[name]], check=True)
        (folder / "ready").touch()
    return python


def run(name: str, environments: Path, url: str) -> subprocess.CompletedProcess[str]:
    """Run one example, in a folder of its own that is also its home."""
    python = python_of(name, environments).absolute()
    language, text = example(name)
    # A file, because some frameworks read the source of the tools they are given.
    script = environments.absolute() / f"{name.replace('-', '_')}_example.{'py' if language == 'python' else 'sh'}"
    script.write_text(text.replace(ADDRESS, url), encoding="utf-8")
    command = [str(python), str(script)] if language == "python" else ["bash", "-eu", str(script)]
    with TemporaryDirectory() as folder:
        # What a client asks of other hosts than ours it is kept from; it does not need them.
        environment = {
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": folder,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "CREWAI_DISABLE_TELEMETRY": "true",
            "OTEL_SDK_DISABLED": "true",
        }
        return subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=folder, env=environment)


def check(name: str, environments: Path, engine: RecordingEngine, url: str) -> list[str]:
    """Run one example; what is wrong with it."""
    engine.exchanges, engine.lines = [], list(LINES.get(name, ()))
    ran = run(name, environments, url)
    if ran.returncode:
        return [f"it failed:\n{ran.stderr[-3000:]}"]
    problems = []
    if PRINTS.get(name, "") not in ran.stdout:
        problems.append(f"it did not print {PRINTS[name]!r}, but {ran.stdout[-1000:]!r}")
    exchanges = engine.exchanges
    said = [engine.tokenizer.decode(exchange.reply, skip_special_tokens=False) for exchange in exchanges]
    if len(exchanges) < 2:
        problems.append(f"it sent {len(exchanges)} requests")
    if name not in WITHOUT_TOOLS and not any("<tool_call>" in reply for reply in said):
        problems.append("it got no tool call")
    if not any("Rain in" in engine.tokenizer.decode(exchange.prompt) for exchange in exchanges[1:]):
        problems.append("no later request has what the tool returned")
    lost = []
    for before, now in pairwise(exchanges):
        found = reuse(engine, before, now)
        print(f"  {found.cached} of {len(now.prompt)} prompt tokens cached; the exchange before had {found.wanted + 1}")
        if min(found.cached, found.kept) >= found.wanted:
            continue
        if found.cached < min(found.kept, found.wanted):
            problems.append(f"{found.kept} tokens were sent again, but only {found.cached} were cached")
        else:
            lost.append(f"{found.replaced[:200]!r} became {found.instead[:200]!r}")
    if name not in KNOWN:
        problems += lost
    elif not lost:
        problems.append("all was sent again as it was; it need not be known any longer")
    return problems


def main() -> int:
    """Run the examples named on the command line, or all; 1 if one has a problem."""
    parser = argparse.ArgumentParser(description="Run the examples of docs/agents.md.")
    parser.add_argument("names", nargs="*", choices=[*REQUIREMENTS, []], default=[])
    parser.add_argument("--environments", type=Path, default=ROOT / ".clients")
    arguments = parser.parse_args()
    failed = False
    for name in arguments.names or REQUIREMENTS:
        print(name, flush=True)
        # One server each: several examples send the same prompt, and would meet one another's replies.
        engine = RecordingEngine(EngineConfig(kv_memory="512MiB"), lambda *_: None)
        with BackgroundServer(engine, ServerConfig(port=0, drain_seconds=0, served_model_name="smollm2")) as server:
            problems = check(name, arguments.environments, engine, server.url)
        for problem in problems:
            print(f"  {problem}")
        if name in KNOWN:
            print(f"  known: {KNOWN[name]}")
        print("  failed" if problems else "  passed", flush=True)
        failed |= bool(problems)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
