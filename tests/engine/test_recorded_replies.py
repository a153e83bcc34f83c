"""Tests of recorded replies: tokens that are taken in place of what the model would say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mainstem.config import EngineConfig
from mainstem.engine import ReplyResult, RequestOutput
from mainstem.engine.build import build_engine
from mainstem.engine.core import EngineCore
from mainstem.errors import InvalidRequest, MainstemError
from mainstem.params import SamplingParams
from mainstem.tree import TokenArray
from tests.engine.support import VOCAB_SIZE, DenseModel, greedy, kv_memory_for, random_tokens

PROMPT, RECORDED, TOOL_OUTPUT = random_tokens(60), random_tokens(12, seed=1), random_tokens(30, seed=2)


@pytest.fixture
def core(tiny_model: Path) -> EngineCore:
    return make_core(tiny_model)


def make_core(folder: Path, **settings: Any) -> EngineCore:
    return build_engine(
        EngineConfig(model=str(folder), **({"kv_memory": "4MiB", "kv_dtype": "float32"} | settings))
    ).core


def submit(core: EngineCore, prompt: TokenArray, recorded: TokenArray | None, params: SamplingParams) -> ReplyResult:
    reply = ReplyResult()

    def take(news: RequestOutput | MainstemError) -> None:
        assert isinstance(news, RequestOutput)
        reply.add(news)

    core.submit(prompt, params, take, recorded=recorded)
    return reply


def run(core: EngineCore, prompt: TokenArray, recorded: TokenArray | None = None, **params: Any) -> ReplyResult:
    reply = submit(core, prompt, recorded, greedy(20, **params))
    while core.has_work():
        core.step()
    core.check_integrity()
    return reply


def test_the_reply_is_the_recorded_one(core: EngineCore) -> None:
    reply = run(core, PROMPT, RECORDED)
    assert reply.token_ids == RECORDED.tolist()
    assert reply.text == core.tokenizer.decode(RECORDED)
    assert reply.finish_reason == "length"
    assert run(core, PROMPT).token_ids[:12] != RECORDED.tolist()


def test_usage_counts_a_recorded_reply_as_any_other(core: EngineCore) -> None:
    usage = run(core, PROMPT, RECORDED).usage
    assert usage is not None
    assert usage[:4] == (len(PROMPT), 0, len(PROMPT), len(RECORDED))
    assert core.stats().generated_tokens == len(RECORDED)


def test_the_tree_holds_prompt_and_recorded_reply_but_for_its_last_token(core: EngineCore) -> None:
    run(core, PROMPT, RECORDED)
    both = np.concatenate([PROMPT, RECORDED])
    assert core.cache.peek(both).length == len(both) - 1


def test_the_next_turn_hits_prompt_and_reply_and_its_text_is_that_of_a_dense_forward(
    core: EngineCore, tiny_model: Path
) -> None:
    run(core, PROMPT, RECORDED)
    turn = np.concatenate([PROMPT, RECORDED, TOOL_OUTPUT])
    reply = run(core, turn)
    assert reply.usage is not None
    assert reply.usage.cached_tokens == len(PROMPT) + len(RECORDED) - 1
    assert reply.token_ids == DenseModel(tiny_model).continue_greedily(turn.tolist(), 20)


def test_nothing_in_a_recorded_reply_or_its_parameters_ends_it_early(core: EngineCore) -> None:
    recorded = RECORDED.copy()
    recorded[3] = 2  # the model's end of turn
    text = core.tokenizer.decode(RECORDED[5:7])
    params = SamplingParams(max_tokens=2, stop=(text,), stop_token_ids=(int(RECORDED[1]),))
    reply = submit(core, PROMPT, recorded, params)
    while core.has_work():
        core.step()
    assert reply.token_ids == recorded.tolist()


def test_a_recorded_reply_goes_on_where_it_was_after_preemption(tiny_model: Path) -> None:
    core = make_core(tiny_model, kv_memory=kv_memory_for(180))
    prompts = [random_tokens(60, seed=seed) for seed in (10, 11)]
    recorded = [random_tokens(80, seed=seed) for seed in (20, 21)]
    replies = [submit(core, p, r, greedy(1)) for p, r in zip(prompts, recorded, strict=True)]
    while core.has_work():
        core.step()
    assert core.stats().preemptions > 0
    assert [reply.token_ids for reply in replies] == [r.tolist() for r in recorded]


@pytest.mark.parametrize(
    ("recorded", "params", "words"),
    [
        ([], {}, "at least one token"),
        ([VOCAB_SIZE], {}, "between 0 and 447"),
        ([-1], {}, "between 0 and 447"),
        ([5] * 2000, {}, "exceed the context"),
        ([5], {"n": 2}, "one reply"),
        ([5], {"logprobs": 1}, "no logprobs"),
    ],
)
def test_what_cannot_be_said_is_refused(
    core: EngineCore, recorded: list[int], params: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        submit(core, PROMPT, np.array(recorded, np.int32), greedy(5, **params))
    assert not core.has_work()
