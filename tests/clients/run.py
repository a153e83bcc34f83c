"""Runs the examples of docs/agents.md, each in an environment of its own, against a server with the embedded model.

    python -m tests.clients.run [NAME ...]

An environment is made once, in the folder named by `--environments`. Each example must end well, send at least two
requests and get at least one tool call; and each later request must send the exchange before it again, letter by
letter, and find in the cache what it has of it token by token, short of the last token, which was never computed.
Where a client changes what it sent, `KNOWN` says how.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import venv
from itertools import pairwise
from pathlib import Path

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
}
# Why a client's later request does not begin with the exchange before it.
KNOWN = {
    "pydantic-ai": "it writes the arguments of a call anew, without spaces",
    "smolagents": "it sends calls back as text of its own; after its last step it asks anew, without tools",
}
ADDRESS = "http://127.0.0.1:8000"


def example(name: str) -> str:
    """The example under a heading of docs/agents.md."""
    page = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(name)}\n.*?```python\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    if found is None:
        raise SystemExit(f"docs/agents.md has no example for {name}")
    return found[1]


def python_of(name: str, environments: Path) -> Path:
    """The interpreter of the client's environment, which is made if need be."""
    folder = environments / name
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS[name]], check=True)
        (folder / "ready").touch()
    return python


def check(name: str, environments: Path, engine: RecordingEngine, url: str) -> list[str]:
    """Run one example; what is wrong with it."""
    engine.exchanges = []
    python = python_of(name, environments)
    # A file, because some frameworks read the source of the tools they are given.
    script = environments / f"{name.replace('-', '_')}_example.py"
    script.write_text(example(name).replace(ADDRESS, url), encoding="utf-8")
    ran = subprocess.run([python, script], capture_output=True, text=True, timeout=1800)
    if ran.returncode:
        return [f"it failed:\n{ran.stderr[-3000:]}"]
    problems = []
    exchanges = engine.exchanges
    said = [engine.tokenizer.decode(exchange.reply, skip_special_tokens=False) for exchange in exchanges]
    if len(exchanges) < 2:
        problems.append(f"it sent {len(exchanges)} requests")
    if not any("<tool_call>" in reply for reply in said):
        problems.append("it got no tool call")
    for before, now in pairwise(exchanges):
        found = reuse(engine, before, now)
        print(f"  {found.cached} of {len(now.prompt)} prompt tokens cached; the exchange before had {found.wanted + 1}")
        if found.cached >= found.wanted or name in KNOWN:
            continue
        if found.cached < min(found.kept, found.wanted):
            problems.append(f"{found.kept} tokens were sent again, but only {found.cached} were cached")
        elif found.is_same_text:
            print(f"  the last {found.wanted - found.kept} came again as the same text in other tokens")
        else:
            problems.append(f"{found.replaced[:200]!r} became {found.instead[:200]!r}")
    return problems


def main() -> int:
    """Run the examples named on the command line, or all; 1 if one has a problem."""
    parser = argparse.ArgumentParser(description="Run the examples of docs/agents.md.")
    parser.add_argument("names", nargs="*", choices=[*REQUIREMENTS, []], default=[])
    parser.add_argument("--environments", type=Path, default=ROOT / ".clients")
    arguments = parser.parse_args()
    engine = RecordingEngine(EngineConfig(kv_memory="512MiB"), lambda *_: None)
    failed = False
    with BackgroundServer(engine, ServerConfig(port=0, drain_seconds=0, served_model_name="smollm2")) as server:
        for name in arguments.names or REQUIREMENTS:
            print(name, flush=True)
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
