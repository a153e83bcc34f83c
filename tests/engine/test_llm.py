"""Tests of the engine in one's own process: what a caller asks for and gets."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mainstem.engine import LLM
from mainstem.errors import ConfigError, EngineFailed, EngineStopped, InvalidRequest, ModelLoadError, PromptTooLong
from mainstem.params import SamplingParams
from tests.engine.support import assert_all_released, greedy, kv_memory_for, random_tokens, tiny_llm
from tests.support.tiny_models import make_tiny_model


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> LLM:
    return tiny_llm(tiny_model)


# Prompts


def test_results_have_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [random_tokens(n, seed=n).tolist() for n in (30, 3, 12)]
    together = llm.generate(prompts, greedy(5))
    alone = [llm.generate([prompt], greedy(5))[0] for prompt in prompts]
    assert [g.token_ids for g in together] == [g.token_ids for g in alone]


def test_texts_ids_and_arrays_are_prompts(llm: LLM) -> None:
    text = "A tree of tokens"
    ids = llm.tokenizer.encode_prompt(text)
    results = [llm.generate(prompt, greedy(4))[0] for prompt in (text, [text], ids, ids.tolist(), [ids.tolist()])]
    assert len({tuple(g.token_ids) for g in results}) == 1


def test_usage_is_shown_in_one_short_line(llm: LLM) -> None:
    """Without what is zero."""
    prompt = random_tokens(30, seed=77)
    llm.generate([prompt], greedy(2))
    usage = llm.generate([prompt], greedy(2))[0].replies[0].usage
    assert usage is not None
    assert usage.record is not None
    assert repr(usage._replace(queue_s=0.0, ttft_s=0.12345678)) == (
        "RequestUsage(prompt_tokens=30, cached_tokens=29, prefilled_tokens=1, completion_tokens=2, ttft_s=0.1235, "
        f"record=Record('{usage.record.id}', prompt_tokens=30, cached_tokens=29, misses={{'rounding': 1}}))"
    )


def test_no_prompts_give_no_results(llm: LLM) -> None:
    assert llm.generate([], greedy(4)) == []


def test_a_chat_is_rendered_by_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "the quick brown fox"}]
    expected = llm.generate([llm.tokenizer.encode_chat(messages)], greedy(4))[0]
    assert llm.chat(messages, greedy(4)).token_ids == expected.token_ids


@pytest.mark.parametrize("bad", [[-1], [448], [10**12], [1.5], [[1, 2], []], "\ud800"])
def test_a_bad_prompt_is_refused_and_disturbs_nobody(llm: LLM, bad: Any) -> None:
    with pytest.raises(InvalidRequest):
        llm.generate([[5, 6, 7], bad] if bad != "\ud800" else ["fine", bad], greedy(4))
    assert_all_released(llm)


def test_a_prompt_beyond_the_context_is_refused_with_both_lengths(llm: LLM) -> None:
    with pytest.raises(PromptTooLong, match=r"2048 tokens .* 2048 tokens"):
        llm.generate([random_tokens(2048).tolist()], greedy(4))


def test_a_prompt_beyond_the_pool_is_refused(tiny_model: Path) -> None:
    small = tiny_llm(tiny_model, kv_memory=kv_memory_for(40))
    with pytest.raises(PromptTooLong, match=r"at most 41 tokens"):
        small.generate([random_tokens(41).tolist()], greedy(4))
    assert len(small.generate([random_tokens(40).tolist()], greedy(4))[0].token_ids) == 1


# Ends


def test_max_tokens_ends_a_reply(llm: LLM) -> None:
    reply = llm.generate("The river", greedy(7))[0].replies[0]
    assert (len(reply.token_ids), reply.finish_reason, reply.stop_reason) == (7, "length", None)


def test_a_stop_token_ends_a_reply_and_is_not_shown(llm: LLM) -> None:
    free = llm.generate("The river", greedy(9))[0]
    stop = free.token_ids[4]
    reply = llm.generate("The river", greedy(9, stop_token_ids=(stop,)))[0].replies[0]
    first = free.token_ids.index(stop)
    assert reply.token_ids == free.token_ids[: first + 1]
    assert (reply.finish_reason, reply.stop_reason) == ("stop", stop)
    assert reply.text == llm.tokenizer.decode(free.token_ids[:first])


def test_a_stop_string_ends_a_reply_before_itself(llm: LLM) -> None:
    free = llm.generate("The river", greedy(30))[0].text
    stop = free[5:9]
    reply = llm.generate("The river", greedy(30, stop=(stop,)))[0].replies[0]
    assert reply.text == free[: free.index(stop)]
    assert (reply.finish_reason, reply.stop_reason) == ("stop", stop)


def test_the_models_own_end_of_turn_ends_a_reply(llm: LLM) -> None:
    end = 2
    params = SamplingParams(max_tokens=2000, temperature=5.0, seed=1)
    reply = llm.generate("The river", params)[0].replies[0]
    assert reply.token_ids[-1] == end
    assert (reply.finish_reason, reply.stop_reason) == ("stop", None)


# Sampling


def test_a_seeded_reply_is_the_same_alone_and_in_a_batch(llm: LLM) -> None:
    params = SamplingParams(max_tokens=20, temperature=1.0, top_p=0.9, seed=7, ignore_eos=True)
    prompts = [random_tokens(n, seed=n).tolist() for n in (5, 50, 17)]
    alone = [llm.generate([prompt], params)[0].token_ids for prompt in prompts]
    together = [g.token_ids for g in llm.generate(prompts, params)]
    assert together == alone


def test_a_seeded_reply_is_the_same_after_preemption(tiny_model: Path, llm: LLM) -> None:
    params = SamplingParams(max_tokens=40, temperature=1.0, seed=3, ignore_eos=True)
    prompts = [random_tokens(20, seed=n).tolist() for n in range(5)]
    small = tiny_llm(tiny_model, kv_memory=kv_memory_for(120))
    assert [g.token_ids for g in small.generate(prompts, params)] == [
        g.token_ids for g in llm.generate(prompts, params)
    ]
    assert small.stats().preemptions > 0


def test_without_a_seed_replies_differ(llm: LLM) -> None:
    params = SamplingParams(max_tokens=16, temperature=2.0, ignore_eos=True)
    assert len({tuple(llm.generate("The river", params)[0].token_ids) for _ in range(4)}) > 1


def test_n_replies_differ_and_compute_the_prompt_once(llm: LLM) -> None:
    prompt = random_tokens(70, seed=11).tolist()
    params = SamplingParams(max_tokens=12, temperature=2.0, seed=5, n=4, ignore_eos=True)
    generation = llm.generate([prompt], params)[0]
    assert len({tuple(reply.token_ids) for reply in generation.replies}) == 4
    assert (generation.cached_tokens, generation.prefilled_tokens) == (0, 70)
    assert [r.token_ids for r in llm.generate([prompt], params)[0].replies] == [r.token_ids for r in generation.replies]


def test_replies_that_begin_one_after_the_other_find_their_prompt_cached_once(tiny_model: Path) -> None:
    with tiny_llm(tiny_model, max_num_seqs=1) as llm:
        llm.generate([random_tokens(20)], greedy(1))
        (again,) = llm.generate([random_tokens(20)], greedy(1, n=4))
    assert (again.cached_tokens, again.prefilled_tokens) == (19, 4)


def test_a_repetition_penalty_reaches_the_sampler(llm: LLM) -> None:
    prompt = random_tokens(20, seed=2).tolist()
    penalized = llm.generate([prompt], greedy(40, repetition_penalty=100.0))[0].token_ids
    assert len(set(penalized)) == 40
    assert not set(penalized) & set(prompt)


def test_logprobs_are_reported_for_every_token(llm: LLM) -> None:
    reply = llm.generate("The river", greedy(6, logprobs=3))[0].replies[0]
    assert [position.chosen.token_id for position in reply.logprobs] == reply.token_ids
    assert all(len(position.top) == 3 and position.top[0] == position.chosen for position in reply.logprobs)


# Sharing


def test_32_identical_prompts_are_computed_once(tiny_model: Path) -> None:
    llm = tiny_llm(tiny_model, kv_memory="8MiB")
    prompt = random_tokens(1900).tolist()
    generations = llm.generate([prompt] * 32, greedy(3))
    assert sum(g.prefilled_tokens for g in generations) == 1900
    assert len({tuple(g.token_ids) for g in generations}) == 1
    assert_all_released(llm)


# Failure


def test_a_failing_step_fails_its_requests_and_not_the_engine(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = tiny_llm(tiny_model)
    prompts = [random_tokens(40).tolist()] * 3
    healthy = llm.core.runner.execute

    def out_of_memory(_: object) -> torch.Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(llm.core.runner, "execute", out_of_memory)
    with pytest.raises(EngineFailed):
        llm.generate(prompts, greedy(4))
    assert_all_released(llm)
    assert llm.stats().cache.evictable == 0
    monkeypatch.setattr(llm.core.runner, "execute", healthy)
    assert len(llm.generate(prompts, greedy(4))) == 3


def test_logits_that_are_not_finite_fail_one_request_only(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = tiny_llm(tiny_model)
    healthy = llm.core.runner.execute
    received: dict[str, list[Any]] = {"bad": [], "good": []}

    def one_bad_row(batch: Any) -> torch.Tensor:
        logits = healthy(batch).clone()
        logits[0] = torch.nan
        return logits

    monkeypatch.setattr(llm.core.runner, "execute", one_bad_row)
    llm.core.submit(random_tokens(10), greedy(1), received["bad"].append)
    llm.core.submit(random_tokens(12, seed=1), greedy(1), received["good"].append)
    while llm.core.has_work():
        llm.core.step()
    assert isinstance(received["bad"][-1], EngineFailed)
    assert received["good"][-1].finish_reason == "length"
    assert llm.stats().cache.evictable == 12  # nothing of the bad one
    assert_all_released(llm)


# Settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kv_memory": "lots"}, "not a size"),
        ({"kv_memory": "1b"}, "hold 0 tokens"),
        ({"kv_memory": "900TB"}, "choose a smaller pool"),
        ({"max_model_len": 4096}, "context of 2048"),
        ({"max_num_seqs": 0}, "between 1 and"),
        ({"max_num_batched_tokens": 10**20}, "between 1 and"),
        ({"dtype": "float8"}, "must be one of auto"),
        ({"kv_memory": 100}, "must be of type str"),
        ({"max_model_len": "long"}, "must be of type int"),
        ({"device": "meta"}, "cannot be used"),
        ({"device": "toaster"}, "cannot be used"),
    ],
)
def test_a_wrong_setting_is_refused_in_words(tiny_model: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        tiny_llm(tiny_model, **settings)


def test_a_model_that_is_not_there_is_refused_in_words() -> None:
    with pytest.raises(ModelLoadError):
        LLM("no/such/model")


# Callers that misbehave


@pytest.mark.parametrize(
    "wrong",
    [
        {"stop": [1]},
        {"stop": "abc"},
        {"stop_token_ids": (1.5,)},
        {"max_tokens": 1.5},
        {"n": 2.0},
        {"top_k": True},
        {"logprobs": "3"},
        {"temperature": "hot"},
        {"top_p": None},
    ],
)
def test_parameters_of_a_wrong_type_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(wrong))):
        SamplingParams(**wrong)


def test_stop_strings_may_come_in_a_list() -> None:
    params: Any = {"stop": ["a", "b"]}
    assert SamplingParams(**params).stop == ("a", "b")


@pytest.mark.parametrize("namespace", ["abc", ["abc"], (("a",),)])
def test_a_namespace_of_a_wrong_type_is_refused(llm: LLM, namespace: Any) -> None:
    with pytest.raises(InvalidRequest, match="namespace"):
        llm.generate("The river", greedy(2), namespace=namespace)


@pytest.mark.parametrize("prompts", [None, 5, [None], [[None]], b"bytes"])
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(InvalidRequest):
        llm.generate(prompts, greedy(2))


def test_a_step_that_cannot_even_be_scheduled_fails_what_waits(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = tiny_llm(tiny_model)

    def broken() -> None:
        raise ValueError("no schedule today")

    with monkeypatch.context() as patch:
        patch.setattr(llm.core.scheduler, "schedule", broken)
        with pytest.raises(EngineFailed):
            llm.generate("The river", greedy(2))
    assert len(llm.generate("The river", greedy(2))[0].token_ids) == 2


def test_threads_may_share_an_engine(llm: LLM) -> None:
    prompts = [random_tokens(20 + n, seed=n).tolist() for n in range(12)]
    alone = [llm.generate([prompt], greedy(8))[0].token_ids for prompt in prompts]
    llm.reset_cache()
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda prompt: llm.generate([prompt], greedy(8))[0].token_ids, prompts))
    assert together == alone
    assert_all_released(llm)


def test_an_interrupt_leaves_the_engine_as_if_the_call_had_been_aborted(tiny_model: Path) -> None:
    llm = tiny_llm(tiny_model)
    prompts = [[*random_tokens(60).tolist(), *random_tokens(5, seed=n).tolist()] for n in range(5)]
    expected = [g.token_ids for g in tiny_llm(tiny_model).generate(prompts, greedy(10))]

    def interrupt(stage: str, done: int, total: int | None) -> None:
        del stage, done, total
        raise KeyboardInterrupt

    for max_tokens in range(1, 12):
        with pytest.raises(KeyboardInterrupt):
            llm.generate([*prompts, [5, 6, 7]], greedy(max_tokens), progress=interrupt)
        assert [g.token_ids for g in llm.generate(prompts, greedy(10))] == expected
        assert_all_released(llm)


def test_what_is_not_finite_never_enters_the_cache(tmp_path: Path) -> None:
    # Tied to the embedding, the head would make every logit row bad.
    folder = make_tiny_model(tmp_path / "nan", tie_word_embeddings=False)
    poison = 300
    weights = load_file(folder / "model.safetensors")
    weights[next(name for name in weights if "embed_tokens" in name)][poison] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    llm = LLM(str(folder), kv_memory="4MiB", max_num_batched_tokens=16)
    prefix = [token for token in random_tokens(40).tolist() if token != poison]
    prompts = [[*prefix, poison, *range(5, 30)], *([*prefix, token] for token in range(5, 12))]
    outputs: list[Any] = []
    for prompt in prompts:
        try:
            outputs.append(llm.generate([prompt], greedy(3))[0].token_ids)
        except EngineFailed:
            outputs.append(None)
    assert outputs[0] is None
    assert None not in outputs[1:]
    llm.reset_cache()
    received: list[list[Any]] = [[] for _ in prompts]

    def submit() -> None:
        for prompt, inbox in zip(prompts, received, strict=True):
            llm.core.submit(np.array(prompt, np.int32), greedy(3), inbox.append)

    llm._engine.ask(submit).result()
    while (stats := llm.stats()).running or stats.waiting:
        time.sleep(0.01)
    assert isinstance(received[0][-1], EngineFailed)
    texts = [[token for news in inbox for token in news.token_ids] for inbox in received[1:]]
    assert texts == outputs[1:]
    assert_all_released(llm)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_is_told_that_the_engine_stayed_behind(tiny_model: Path) -> None:
    llm = tiny_llm(tiny_model)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            llm.generate([[5, 6, 7]], greedy(2))
        except EngineStopped:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert llm.generate([[5, 6, 7]], greedy(2))[0].token_ids
