"""Tests of branches: what they share, what they hold, and that sharing changes no reply."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mainstem.engine import LLM, Branch, ReplyResult
from mainstem.errors import BranchError, EngineFailed, EngineStopped, InvalidRequest, OutOfSlots, PromptTooLong
from mainstem.params import SamplingParams
from mainstem.tree import TokenArray
from tests.engine.support import assert_all_released, greedy, kv_memory_for, random_tokens, tiny_llm

ROOT = random_tokens(300)
TAILS = [random_tokens(5 + n, seed=n) for n in range(6)]


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> LLM:
    return tiny_llm(tiny_model)


@pytest.fixture(scope="module")
def fresh(tiny_model: Path) -> LLM:
    """An engine that shares nothing."""
    return tiny_llm(tiny_model, prefix_cache="none")


@pytest.fixture(autouse=True)
def _nothing_left(llm: LLM) -> Iterator[None]:
    llm.reset_cache()
    yield
    gc.collect()
    assert_all_released(llm)


def prefilled(llm: LLM) -> int:
    return llm.stats().prefilled_tokens


def distinct_tokens(sequences: list[TokenArray]) -> int:
    """How many different prefixes some sequences have: the nodes of their trie."""
    return len({sequence[:end].tobytes() for sequence in sequences for end in range(1, len(sequence) + 1)})


# What it says


def test_a_branch_says_what_its_tokens_computed_afresh_say(llm: LLM, fresh: LLM) -> None:
    with llm.context(ROOT) as context:
        before = llm.stats()
        for tail in TAILS:
            with context.fork().append(tail) as branch:
                expected = fresh.generate([branch.tokens], greedy(9))[0]
                assert branch.generate(greedy(9)).token_ids == expected.token_ids
                assert branch.tokens.tolist() == [*ROOT, *tail, *expected.token_ids]
        after = llm.stats()
        assert after.cached_tokens - before.cached_tokens >= len(TAILS) * (len(ROOT) - 1)


def test_branches_together_say_what_each_says_alone_and_compute_the_root_once(llm: LLM, fresh: LLM) -> None:
    before = prefilled(llm)
    with llm.context(ROOT) as context:
        branches = [context.fork().append(tail) for tail in TAILS]
        replies = llm.generate_branches(branches, greedy(9))
        expected = fresh.generate([np.concatenate([ROOT, tail]) for tail in TAILS], greedy(9))
        assert [reply.token_ids for reply in replies] == [generation.token_ids for generation in expected]
        prompts = [np.concatenate([ROOT, tail]) for tail in TAILS]
        assert prefilled(llm) - before == distinct_tokens(prompts)
        for branch in branches:
            branch.drop()


def test_a_branch_of_a_branch_goes_on_from_there(llm: LLM, fresh: LLM) -> None:
    with llm.context(ROOT) as context, context.fork().append(TAILS[0]) as child:
        child.generate(greedy(8))
        before = prefilled(llm)
        with child.fork().append(TAILS[1]) as grandchild:
            expected = fresh.generate([grandchild.tokens], greedy(8))[0]
            assert grandchild.generate(greedy(8)).token_ids == expected.token_ids
            # Its parent's last sampled token was never computed.
            assert prefilled(llm) - before == 1 + len(TAILS[1])


def test_each_branch_may_have_parameters_of_its_own(llm: LLM) -> None:
    with llm.context(ROOT) as context, context.fork() as one, context.fork() as two:
        replies = llm.generate_branches([one, two], [greedy(3), greedy(7)])
        assert [len(reply.token_ids) for reply in replies] == [3, 7]


def test_seeded_branches_differ_by_their_seeds_only(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=12, temperature=2.0, seed=seed, ignore_eos=True) for seed in (1, 2, 1)]
    with llm.context(ROOT) as context:
        branches = [context.fork() for _ in params]
        one, two, again = (reply.token_ids for reply in llm.generate_branches(branches, params))
        assert one == again != two
        for branch in branches:
            branch.drop()


def test_a_branch_keeps_the_tokens_of_the_stop_that_ended_it(llm: LLM) -> None:
    with llm.context("The river") as context, context.fork() as free, context.fork() as stopped:
        text = free.generate(greedy(30)).text
        reply = stopped.generate(greedy(30, stop=(text[5:9],)))
        assert reply.text == text[: text.index(text[5:9])]
        assert stopped.text.removeprefix(context.text).startswith(reply.text + text[5:9])


def test_texts_and_messages_are_contexts(llm: LLM) -> None:
    messages = [{"role": "user", "content": "the quick brown fox"}]
    with llm.context(messages) as chat, llm.context("A tree of tokens") as plain:
        assert chat.tokens.tolist() == llm.tokenizer.encode_chat(messages).tolist()
        assert plain.text == "A tree of tokens"
        assert chat.append(" jumps").text.endswith("assistant\n jumps")
    with llm.context(messages, add_generation_prompt=False) as open_chat:
        assert open_chat.text.endswith("<|im_end|>\n")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_without_a_prefix_cache_branches_work_and_share_nothing(fresh: LLM, llm: LLM) -> None:
    with fresh.context(ROOT) as context, context.fork() as branch:
        assert branch.generate(greedy(5)).token_ids == llm.generate([ROOT], greedy(5))[0].token_ids
        assert (context.held_tokens, branch.held_tokens) == (0, 0)
        fresh.check_integrity()


def test_over_block_hashes_branches_share_whole_blocks(tiny_model: Path, fresh: LLM) -> None:
    llm = tiny_llm(tiny_model, prefix_cache="block-hash")
    with llm.context(ROOT) as context:
        assert context.held_tokens == 288
        for tail in TAILS:
            with context.fork().append(tail) as branch:
                reply = branch.generate(greedy(9))
                assert reply.token_ids == fresh.generate([np.concatenate([ROOT, tail])], greedy(9))[0].token_ids
                assert reply.usage is not None
                assert reply.usage.cached_tokens == 288
                assert branch.held_tokens % 16 == 0
                branch.score(TAILS[0])
                llm.check_integrity()
    assert_all_released(llm)


# What it costs


def test_a_fork_asks_nothing_of_the_engine(llm: LLM) -> None:
    with llm.context(ROOT) as context:
        before = llm.stats()
        stepping, done = threading.Event(), threading.Event()

        def long_step() -> None:
            stepping.set()
            done.wait(10)

        llm._engine.send(long_step)
        assert stepping.wait(10)
        forks = [context.fork() for _ in range(100)]
        done.set()
        assert llm.stats() == before
        assert all(fork.tokens is context.tokens for fork in forks)
        for fork in forks:
            fork.drop()


def test_the_memory_of_64_branches_is_the_root_and_the_tails(tiny_model: Path) -> None:
    llm = tiny_llm(tiny_model, kv_memory=kv_memory_for(300 + 64 * 70), max_num_seqs=64)
    with llm.context(ROOT) as context:
        branches = [context.fork().append(random_tokens(10, seed=seed)) for seed in range(64)]
        llm.generate_branches(branches, greedy(12))
        computed = [branch.tokens[:-1] for branch in branches]
        stats = llm.stats()
        assert stats.cache.protected == distinct_tokens(computed) <= 300 + 64 * 21
        assert stats.held_prefixes == 65
        llm.check_integrity()
        for branch in branches:
            branch.drop()
        assert llm.stats().cache.protected == 299
    assert_all_released(llm)


def test_forks_that_generate_at_once_compute_the_last_token_of_the_context_once(llm: LLM) -> None:
    before = prefilled(llm)
    with llm.context(ROOT) as context:
        branches = [context.fork() for _ in range(8)]
        llm.generate_branches(branches, greedy(4))
        assert prefilled(llm) - before == len(ROOT)
        for branch in branches:
            branch.drop()


def test_what_was_appended_can_be_computed_once_for_later_forks(llm: LLM) -> None:
    with llm.context(ROOT) as context:
        context.append(TAILS[3])
        context.prefill()
        assert context.held_tokens == len(context) - 1
        before = prefilled(llm)
        context.prefill()
        assert prefilled(llm) == before
        with context.fork() as branch:
            branch.generate(greedy(2))
        assert prefilled(llm) == before + 1


def test_a_context_may_be_left_to_its_branches_to_compute(llm: LLM) -> None:
    before = prefilled(llm)
    with llm.context(ROOT, prefill=False) as context:
        assert prefilled(llm) == before
        with context.fork() as branch:
            branch.generate(greedy(2))
            assert (context.held_tokens, branch.held_tokens) == (0, 301)


def test_the_report_compares_with_engines_that_do_not_share(tiny_model: Path) -> None:
    llm = tiny_llm(tiny_model)
    with llm.context(ROOT) as context:
        branches = [context.fork().append([5 + n]) for n in range(4)]
        llm.generate_branches(branches, greedy(3))
        report = llm.sharing()
        assert (report.computed_tokens, report.uncached_tokens) == (300 + 4, 4 * 301)
        assert report.generated_tokens == 12
        assert report.unshared_kv_tokens == 299 + 4 * 303
        assert 300 + 4 * 3 <= report.peak_kv_tokens < 300 + 4 * 64
        assert "304  without a cache 1,204, 4.0 times" in str(report)
        for branch in branches:
            branch.drop()


# What it holds


def test_a_dropped_branch_leaves_evictable_leaves(llm: LLM) -> None:
    with llm.context(ROOT) as context:
        branch = context.fork().append(TAILS[0])
        branch.generate(greedy(6))
        own = len(TAILS[0]) + 5 + 1  # its context's last token too
        assert llm.stats().cache.protected == 299 + own
        branch.drop()
        branch.drop()
        stats = llm.stats().cache
        assert (stats.protected, stats.evictable) == (299, own)
    assert llm.stats().cache.protected == 0


def test_what_one_branch_lets_go_another_still_holds(llm: LLM) -> None:
    context = llm.context(ROOT)
    branch = context.fork()
    context.drop()
    assert llm.stats().cache.protected == 299
    branch.drop()
    assert llm.stats().cache.protected == 0


def test_eviction_takes_nothing_that_a_branch_holds(tiny_model: Path) -> None:
    llm = tiny_llm(tiny_model, kv_memory=kv_memory_for(420))
    with llm.context(ROOT) as context:
        for seed in range(5):
            llm.generate([random_tokens(90, seed=seed)], greedy(3))
        llm.reset_cache()
        before = prefilled(llm)
        with context.fork() as branch:
            branch.generate(greedy(1))
        assert prefilled(llm) == before + 1
    assert_all_released(llm)


def test_a_branch_that_is_forgotten_warns_and_is_dropped(llm: LLM) -> None:
    forgotten = [llm.context(ROOT)]
    with pytest.warns(ResourceWarning, match="300 tokens, 299 held> was never dropped"):
        forgotten.clear()
    assert llm.stats().cache.protected == 0


def test_a_lock_that_no_branch_answers_for_is_found(tiny_model: Path) -> None:
    llm = tiny_llm(tiny_model)
    with llm.context(ROOT):
        llm.check_integrity()
        llm._engine.ask(lambda: llm.core.cache.lock(llm.core.cache.match_prefix(ROOT[:50]).handle)).result()
        llm.check_integrity()  # covered by the context's own
    with pytest.raises(AssertionError, match=r"50 slots are protected, .* account for 0"):
        llm.check_integrity()


def test_a_hold_whose_lock_is_gone_is_found(tiny_model: Path) -> None:
    llm = tiny_llm(tiny_model)
    with llm.context(ROOT):
        (hold,) = llm.core.scheduler.holds
        llm._engine.ask(lambda: llm.core.cache.unlock(hold.handle)).result()
        with pytest.raises(AssertionError, match=r"0 slots are protected, .* account for 299"):
            llm.check_integrity()
        llm._engine.ask(lambda: llm.core.cache.lock(hold.handle)).result()


# When the pool is full of what branches hold


def grown(context: Branch, tokens: int) -> Branch:
    branch = context.fork().append(random_tokens(tokens, seed=99))
    branch.prefill()
    return branch


def test_a_newcomer_that_cannot_fit_is_told_why_and_fits_when_a_branch_is_dropped(tiny_model: Path) -> None:
    llm = tiny_llm(tiny_model, kv_memory=kv_memory_for(500))
    newcomer = random_tokens(150, seed=7)
    with llm.context(ROOT) as context:
        with grown(context, 100), pytest.raises(OutOfSlots, match="live branches hold 399: drop some") as caught:
            llm.generate([newcomer], greedy(2))
        assert (caught.value.needed, caught.value.available, caught.value.held) == (150, 101, 399)
        assert len(llm.generate([newcomer], greedy(2))[0].token_ids) == 2
    assert_all_released(llm)


def test_a_reply_that_grows_into_what_is_held_ends_with_the_error_and_leaves_its_branch_alone(tiny_model: Path) -> None:
    llm = tiny_llm(tiny_model, kv_memory=kv_memory_for(400))
    with llm.context(ROOT) as context, grown(context, 60), context.fork() as branch:
        with pytest.raises(OutOfSlots, match="drop some"):
            branch.generate(greedy(80))
        assert len(branch) == 300
        assert len(branch.generate(greedy(20)).token_ids) == 20
    assert_all_released(llm)


def test_room_can_be_made_while_the_error_is_handled(tiny_model: Path) -> None:
    llm = tiny_llm(tiny_model, kv_memory=kv_memory_for(400), max_num_seqs=1)
    with llm.context(ROOT) as context:
        branches = [context.fork().append([5 + n]) for n in range(3)]
        with pytest.raises(OutOfSlots) as caught:
            llm.generate_branches(branches, greedy(60))
        assert [len(branch) for branch in branches] == [361, 301, 301]
        branches[0].drop()
        assert caught.tb is not None  # though the traceback still refers to what ran
        assert llm.stats().cache.protected == 299
        assert len(branches[1].generate(greedy(60)).token_ids) == 60
        for branch in branches:
            branch.drop()
    assert_all_released(llm)


def test_requests_that_fit_go_on_beside_one_that_does_not(tiny_model: Path) -> None:
    llm = tiny_llm(tiny_model, kv_memory=kv_memory_for(400))
    with llm.context(ROOT), ThreadPoolExecutor(2) as pool:
        large = pool.submit(llm.generate, [random_tokens(200, seed=5)], greedy(2))
        small = pool.submit(llm.generate, [random_tokens(20, seed=6)], greedy(30))
        assert len(small.result(20)[0].token_ids) == 30
        assert isinstance(large.exception(20), OutOfSlots)
    assert_all_released(llm)


# When something comes in between


class Interrupted(BaseException):
    """Stands for Ctrl-C, which would end pytest."""


def test_an_interrupt_leaves_the_branch_as_it_was(llm: LLM, fresh: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    add, seen = ReplyResult.add, 0

    def interrupt(reply: ReplyResult, output: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == 4:
            raise Interrupted
        add(reply, output)

    with llm.context(ROOT) as context, context.fork() as branch:
        with monkeypatch.context() as patch:
            patch.setattr(ReplyResult, "add", interrupt)
            with pytest.raises(Interrupted):
                branch.generate(greedy(200))
        assert (len(branch), branch.held_tokens) == (300, 299)
        assert llm.stats().requests_aborted > 0
        assert branch.generate(greedy(9)).token_ids == fresh.generate([ROOT], greedy(9))[0].token_ids


def test_an_interrupted_context_holds_nothing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr("mainstem.engine.branch._Scored.take", interrupt)
        with pytest.raises(Interrupted):
            llm.context(ROOT)
    gc.collect()
    assert llm.stats().cache.protected == 0


def test_a_stream_gives_what_generate_gives(llm: LLM) -> None:
    with llm.context(ROOT) as context, context.fork() as streamed, context.fork() as whole:
        outputs = list(streamed.stream(greedy(7)))
        assert [len(output.token_ids) for output in outputs] == [1] * 7
        assert "".join(output.text for output in outputs) == whole.generate(greedy(7)).text
        assert streamed.tokens.tolist() == whole.tokens.tolist()


def test_a_stream_that_is_closed_early_leaves_the_branch_as_it_was(llm: LLM) -> None:
    with llm.context(ROOT) as context, context.fork() as branch:
        for output in branch.stream(greedy(500)):
            if output.usage.completion_tokens == 3:
                break
        assert (len(branch), branch.held_tokens) == (300, 299)
        assert len(branch.generate(greedy(2)).token_ids) == 2


def test_dropping_a_branch_aborts_its_reply(llm: LLM) -> None:
    with llm.context(ROOT) as context:
        branch = context.fork()
        outputs = branch.stream(greedy(1500))
        next(outputs)
        branch.drop()
        assert list(outputs)[-1].finish_reason == "abort"
        assert llm.stats().cache.protected == 299


def test_a_failing_step_fails_the_reply_and_not_what_is_held(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("no memory")

    with llm.context(ROOT) as context, context.fork() as branch:
        with monkeypatch.context() as patch:
            patch.setattr(llm.core.runner, "execute", broken)
            with pytest.raises(EngineFailed):
                branch.generate(greedy(3))
            with pytest.raises(EngineFailed):
                branch.score([5, 6])
        llm.check_integrity()
        assert len(branch.generate(greedy(3)).token_ids) == 3


def test_closing_ends_what_runs_and_branches_say_so(tiny_model: Path) -> None:
    llm = tiny_llm(tiny_model)
    branches = [llm.context(ROOT)]
    with llm, ThreadPoolExecutor(1) as pool:
        running = pool.submit(branches[0].generate, greedy(1500))
        while not llm.stats().running:
            pass
        llm.close()
        assert running.result(10).finish_reason == "abort"
        for use in (branches[0].fork().generate, lambda: branches[0].score([5]), llm.stats):
            with pytest.raises(EngineStopped):
                use()
        assert branches[0].tokens.tolist() == ROOT.tolist()
    branches.clear()  # holds nothing any more, so it does not warn


def test_a_branch_keeps_its_engine_alive(tiny_model: Path) -> None:
    with tiny_llm(tiny_model).context(ROOT) as context:
        gc.collect()
        assert len(context.generate(greedy(2)).token_ids) == 2


# What is refused


def test_a_dropped_branch_can_be_read_and_nothing_else(llm: LLM) -> None:
    branch = llm.context(ROOT)
    branch.drop()
    assert (len(branch.tokens), len(branch)) == (300, 300)
    uses = (
        branch.fork,
        branch.generate,
        branch.prefill,
        lambda: branch.append([5]),
        lambda: branch.score([5]),
        lambda: list(branch.stream()),
    )
    for use in uses:
        with pytest.raises(BranchError, match="was dropped"):
            use()


def test_a_branch_generates_one_reply_at_a_time(llm: LLM) -> None:
    with llm.context(ROOT) as branch:
        outputs = branch.stream(greedy(50))
        next(outputs)
        for use in (branch.generate, lambda: branch.append([5])):
            with pytest.raises(BranchError, match="fork it"):
                use()
        with branch.fork() as other:
            assert len(other.generate(greedy(2)).token_ids) == 2
        outputs.close()
        with pytest.raises(BranchError, match="fork it"):
            llm.generate_branches([branch, branch], greedy(2))
        assert len(branch.generate(greedy(2)).token_ids) == 2


def test_several_replies_are_several_branches(llm: LLM) -> None:
    with llm.context(ROOT) as context, pytest.raises(InvalidRequest, match="fork it for each"):
        context.generate(greedy(2, n=2))


@pytest.mark.parametrize("bad", [[-1], [448], [1.5], [[1, 2]], "\ud800", None])
def test_what_is_no_continuation_is_refused_and_changes_nothing(llm: LLM, bad: Any) -> None:
    with llm.context(ROOT) as context:
        for use in (context.append, context.score):
            with pytest.raises(InvalidRequest):
                use(bad)
        assert len(context) == 300


def test_a_branch_stays_within_the_context_of_the_model(llm: LLM) -> None:
    with llm.context(ROOT) as context:
        with pytest.raises(PromptTooLong):
            context.append([5] * 1748)
        context.append([5] * 1747)
        assert len(context.generate(greedy(9)).token_ids) == 1
        with pytest.raises(PromptTooLong):
            context.generate(greedy(1))
        with pytest.raises(PromptTooLong):
            context.score([5, 6])


def test_a_branch_of_another_llm_is_refused(llm: LLM, fresh: LLM) -> None:
    with fresh.context([5, 6]) as foreign, pytest.raises(BranchError, match="another LLM"):
        llm.generate_branches([foreign])


def test_lists_must_have_one_entry_for_each_branch(llm: LLM) -> None:
    with llm.context(ROOT) as context, context.fork() as branch:
        with pytest.raises(InvalidRequest, match="as many params"):
            llm.generate_branches([context, branch], [greedy(1)])
        with pytest.raises(InvalidRequest, match="as many continuations"):
            llm.score_branches([context, branch], "ab")
    assert not llm.generate_branches([])
    assert not llm.score_branches([], [])


def test_the_tokens_of_a_branch_cannot_be_written_to(llm: LLM) -> None:
    mine = ROOT.copy()
    with llm.context(mine) as context:
        mine[0] = 7
        assert context.tokens[0] == ROOT[0]
        with pytest.raises(ValueError, match="read-only"):
            context.tokens[0] = 7


def test_namespaces_keep_branches_apart(llm: LLM) -> None:
    with llm.context(ROOT), llm.context(ROOT, namespace=("a",)) as other:
        assert llm.stats().cache.protected == 2 * 299
        with other.fork() as branch:
            usage = branch.generate(greedy(2)).usage
            assert usage is not None
            assert usage.cached_tokens == 299


# In threads and tasks


def test_threads_share_a_context(llm: LLM, fresh: LLM) -> None:
    prompts = [np.concatenate([ROOT, tail]) for tail in TAILS]
    expected = [generation.token_ids for generation in fresh.generate(prompts, greedy(8))]

    def work(tail: TokenArray) -> list[int]:
        with context.fork().append(tail) as branch:
            return branch.generate(greedy(8)).token_ids

    with llm.context(ROOT) as context, ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, TAILS)) == expected


async def test_tasks_share_a_context_and_its_steps(llm: LLM, fresh: LLM) -> None:
    prompts = [np.concatenate([ROOT, tail]) for tail in TAILS]
    expected = [generation.token_ids for generation in fresh.generate(prompts, greedy(8))]
    with llm.context(ROOT, prefill=False) as context:
        await context.aprefill()
        before = llm.stats().steps
        branches = [context.fork().append(tail) for tail in TAILS]
        replies = await asyncio.gather(*(branch.agenerate(greedy(8)) for branch in branches))
        assert [reply.token_ids for reply in replies] == expected
        assert llm.stats().steps - before < 2 * 8
        for branch in branches:
            branch.drop()


async def test_an_asynchronous_stream_gives_what_generate_gives(llm: LLM) -> None:
    with llm.context(ROOT) as context, context.fork() as streamed, context.fork() as whole:
        tokens = [token async for output in streamed.astream(greedy(6)) for token in output.token_ids]
        assert tokens == whole.generate(greedy(6)).token_ids
        assert streamed.tokens.tolist() == whole.tokens.tolist()


async def test_cancelling_a_task_aborts_its_reply_and_leaves_the_branch_as_it_was(llm: LLM) -> None:
    with llm.context(ROOT) as context, context.fork() as branch:
        task = asyncio.create_task(branch.agenerate(greedy(1500)))
        while not llm.stats().running:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while llm.stats().running:
            await asyncio.sleep(0.005)
        assert (len(branch), branch.held_tokens) == (300, 299)
        assert len((await branch.agenerate(greedy(2))).token_ids) == 2


async def test_a_task_that_is_cancelled_before_the_engine_hears_of_it_harms_nothing(llm: LLM) -> None:
    with llm.context(ROOT) as context:
        release = threading.Event()
        llm._engine.send(lambda: release.wait(10))
        task = asyncio.create_task(context.agenerate(greedy(5)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len((await context.agenerate(greedy(2))).token_ids) == 2
