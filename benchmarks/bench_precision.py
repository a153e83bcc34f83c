"""How often weights and KV in fewer bits give the same greedy text as float32, beside how often other engines do.

Fifty varied prompts (benchmarks/prompts.txt), each continued greedily. The reference is float32 weights and KV. Every
other arm is compared with it twice: its own text, and how likely it thinks each token of the reference's text is. A
server given by --peer runs the same prompts as text through /v1/completions; only texts are compared with it.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import httpx

from benchmarks.measuring import keep
from mainstem import LLM, SamplingParams

PROMPTS = Path(__file__).with_name("prompts.txt")
REFERENCE = "float32"
ARMS: dict[str, dict[str, str]] = {
    REFERENCE: {"weights": "float32", "kv_dtype": "float32"},
    "weights as in the file": {"weights": "auto", "kv_dtype": "float32"},
    "float16 weights": {"weights": "float16", "kv_dtype": "float32"},
    "float16 KV": {"weights": "float32", "kv_dtype": "float16"},
    "float16 weights and KV": {"weights": "float16", "kv_dtype": "float16"},
    "int8 weights": {"weights": "int8", "kv_dtype": "float32"},
    "bfloat16 weights and KV": {"weights": "bfloat16", "kv_dtype": "bfloat16"},
}


def read_prompts() -> list[str]:
    """One a line, with \\n for a new line."""
    return [line.replace("\\n", "\n") for line in PROMPTS.read_text().splitlines()]


def texts_of(llm: LLM, prompts: Sequence[str], length: int) -> list[str]:
    """Greedy replies of exactly so many tokens."""
    params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
    return [generation.text for generation in llm.generate(list(prompts), params)]


def texts_of_peer(base_url: str, prompts: Sequence[list[int]], length: int) -> list[str]:
    """The same from a server, which gets token ids; streamed, since some serve nothing else."""
    with httpx.Client(base_url=base_url, timeout=600.0, trust_env=False) as http:
        model = http.get("/models").json()["data"][0]["id"]
        body = {"model": model, "max_tokens": length, "temperature": 0, "ignore_eos": True, "stream": True}
        return [_streamed(http, {**body, "prompt": prompt}) for prompt in prompts]


def _streamed(http: httpx.Client, body: dict[str, Any]) -> str:
    text = ""
    with http.stream("POST", "/completions", json=body) as reply:
        reply.raise_for_status()
        for line in reply.iter_lines():
            data = line.removeprefix("data: ")
            if line.startswith("data: ") and data != "[DONE]":
                text += "".join(choice.get("text", "") for choice in json.loads(data)["choices"])
    return text


def agreement(texts: Sequence[str], others: Sequence[str]) -> dict[str, Any]:
    """How many texts are the same, and how far they are in the mean."""
    shares = []
    for text, other in zip(texts, others, strict=True):
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False)))
        shares.append(1.0 if text == other else same / max(len(text), 1))
    return {"same": sum(share == 1.0 for share in shares), "of": len(shares), "common_share": mean(shares)}


def surprise(llm: LLM, prompts: Sequence[str], replies: Sequence[str]) -> list[list[float]]:
    """Log-probabilities of every token of the replies."""
    scores = []
    for prompt, reply in zip(prompts, replies, strict=True):
        with llm.context(prompt) as context:
            scores.append(list(context.score(reply).logprobs))
    return scores


def compare_scores(scores: Sequence[Sequence[float]], reference: Sequence[Sequence[float]]) -> dict[str, float]:
    """Differences of log-probabilities, in nats a token."""
    pairs = [(a, b) for row, other in zip(scores, reference, strict=True) for a, b in zip(row, other, strict=True)]
    return {
        "mean_change": mean(a - b for a, b in pairs),
        "mean_size_of_change": mean(abs(a - b) for a, b in pairs),
        "largest_change": max(abs(a - b) for a, b in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="as for mainstem serve [default: smollm2]")
    parser.add_argument("--length", type=int, default=64, help="tokens of a reply [default: 64]")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=URL", help="another server, up to /v1")
    parser.add_argument("--out", type=Path, help="write the figures there, as JSON")
    arguments = parser.parse_args()
    prompts = read_prompts()
    texts: dict[str, list[str]] = {}
    scores: dict[str, list[list[float]]] = {}
    for name, settings in ARMS.items():
        llm = LLM(arguments.model, kv_memory="1GiB", **settings)  # type: ignore[arg-type]
        texts[name] = texts_of(llm, prompts, arguments.length)
        ids = [llm.tokenizer.encode(prompt).tolist() for prompt in prompts]
        scores[name] = surprise(llm, prompts, texts[REFERENCE])
        llm.close()
        del llm
        gc.collect()
    for peer in arguments.peer:
        name, _, url = peer.partition("=")
        texts[name] = texts_of_peer(url, ids, arguments.length)
    names = list(texts)
    figures: dict[str, Any] = {
        "model": arguments.model,
        "prompts": len(prompts),
        "length": arguments.length,
        "same_text": {f"{a} / {b}": agreement(texts[a], texts[b]) for a, b in itertools.combinations(names, 2)},
        "log_probability": {
            name: compare_scores(scores[name], scores[REFERENCE]) for name in scores if name != REFERENCE
        },
    }
    for pair, found in figures["same_text"].items():
        print(f"{pair:<60} {found['same']} of {found['of']} texts the same, {found['common_share']:.1%} in common")
    for name, change in figures["log_probability"].items():
        print(
            f"{name:<60} log-probability changes by {change['mean_size_of_change']:.1e} in the mean, "
            f"{change['largest_change']:.1e} at most; {change['mean_change']:+.1e} on balance"
        )
    keep(arguments.out, figures)


if __name__ == "__main__":
    main()
