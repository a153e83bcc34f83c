"""How callers may write tokens and namespaces, and which mistakes are caught."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import mainstem
from mainstem.tree import BlockHashCache, NoPrefixCache, PrefixCache, RadixCache, as_tokens


@pytest.mark.parametrize(
    "tokens",
    [
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        np.array([1, 2, 3], dtype=np.int32),
        np.array([1, 2, 3], dtype=np.int64),
        np.array([1, 2, 3], dtype=np.uint8),
        np.array([1, 2, 3], dtype=">i4"),
        np.array([1, 0, 2, 0, 3], dtype=np.int32)[::2],
        [np.int32(1), np.int64(2), 3],
    ],
)
def test_tokens_are_any_sequence_of_integers(tokens: Any) -> None:
    cache = RadixCache(10)
    cache.insert([1, 2, 3])
    assert cache.match_prefix(tokens).length == 3
    assert cache.insert(tokens).num_cached == 3


@pytest.mark.parametrize("tokens", [[], (), range(0), np.empty(0, dtype=np.int32), np.empty(0)])
def test_no_tokens_match_nothing(tokens: Any) -> None:
    assert RadixCache(10).match_prefix(tokens).length == 0


def test_the_largest_token_id_is_accepted() -> None:
    cache = RadixCache(10)
    cache.insert([2**31 - 1])
    assert cache.match_prefix([2**31 - 1]).length == 1


def test_an_int32_array_is_not_copied_to_be_matched() -> None:
    tokens = np.array([1, 2, 3], dtype=np.int32)
    assert as_tokens(tokens) is tokens


@pytest.mark.parametrize(
    "tokens",
    [
        [1.0, 2.0],
        np.array([1.0]),
        "abc",
        b"abc",
        ["1"],
        [None],
        None,
        5,
        [True, False],
        np.array(5, dtype=np.int32),
        np.array([[1, 2]], dtype=np.int32),
        [[1, 2], [3, 4]],
        [[1], [2, 3]],
        {1: 2},
    ],
)
@pytest.mark.parametrize("kind", [RadixCache, BlockHashCache, NoPrefixCache])
def test_tokens_that_are_no_line_of_integers_are_refused(kind: type[PrefixCache], tokens: Any) -> None:
    cache = kind(16)
    for call in (cache.match_prefix, cache.peek, cache.insert):
        with pytest.raises(TypeError, match="tokens must be"):
            call(tokens)
    assert cache.stats().queries == 0


@pytest.mark.parametrize(
    "tokens",
    [[-1], np.array([3, -1], dtype=np.int32), [2**31], np.array([2**31]), [2**63], [2**100], [-(2**100)]],
)
@pytest.mark.parametrize("kind", [RadixCache, BlockHashCache, NoPrefixCache])
def test_token_ids_out_of_range_are_refused(kind: type[PrefixCache], tokens: Any) -> None:
    cache = kind(16)
    for call in (cache.match_prefix, cache.peek, cache.insert):
        with pytest.raises(ValueError, match="token ids must"):
            call(tokens)


NAMESPACES: list[tuple[Any, ...]] = [
    (),
    (1,),
    ("1",),
    (True,),
    (1.0,),
    (b"1",),
    (None,),
    ("",),
    ("bc", "a"),
    ("c", "ab"),
    ("bca",),
    ("b", "ca"),
    (1, "1"),
]


def test_namespaces_are_apart_by_type_and_by_part() -> None:
    cache = RadixCache(100)
    for index, namespace in enumerate(NAMESPACES):
        assert cache.match_prefix([1, 2], namespace).length == 0
        cache.insert([1, 2], namespace)
        assert cache.stats().num_namespaces == index + 1
    slots = [tuple(cache.match_prefix([1, 2], namespace).slots.tolist()) for namespace in NAMESPACES]
    assert len(set(slots)) == len(NAMESPACES)
    cache.check_integrity()


def test_an_equal_namespace_is_the_same() -> None:
    cache = RadixCache(10)
    cache.insert([1, 2], ("tenant", 7))
    assert cache.match_prefix([1, 2], ("ten" + "ant", 7)).length == 2


def test_namespaces_share_the_pool_and_the_order_of_eviction() -> None:
    cache = RadixCache(4)
    cache.insert([1, 2], ("old",))
    cache.insert([1, 2], ("new",))
    cache.insert([3, 4])
    assert cache.peek([1, 2], ("old",)).length == 0
    assert cache.peek([1, 2], ("new",)).length == 2


def test_an_empty_namespace_leaves_nothing_behind() -> None:
    cache = RadixCache(10)
    for tenant in range(100):
        cache.match_prefix([1], (tenant,))
        cache.insert([1, 2, 3, 4], (tenant,))
    assert cache.stats().num_namespaces == 3
    cache.reset()
    assert not cache._roots


def test_a_namespace_may_be_evicted_to_make_room_for_itself() -> None:
    cache = RadixCache(4)
    cache.insert([1, 2, 3, 4], ("a",))
    assert cache.insert([5, 6, 7, 8], ("a",)).length == 4
    assert cache.match_prefix([5, 6, 7, 8], ("a",)).length == 4
    cache.check_integrity()


@pytest.mark.parametrize("namespace", ["abc", ["a"], None, 1, ((1,),), (object(),), (np.int64(1),)])
@pytest.mark.parametrize("kind", [RadixCache, BlockHashCache, NoPrefixCache])
def test_namespaces_that_are_no_tuple_of_plain_values_are_refused(kind: type[PrefixCache], namespace: Any) -> None:
    with pytest.raises(TypeError, match="namespace"):
        kind(16).insert([1], namespace)


def test_the_tree_loads_without_torch() -> None:
    code = (
        "import sys; from mainstem import RadixCache, BlockHashCache, MatchResult, CacheStats, OutOfSlots; "
        "RadixCache(8).insert([1]); BlockHashCache(16).insert([1]); "
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_lists_its_names_and_refuses_others() -> None:
    assert {"LLM", "RadixCache", "SamplingParams", "__version__"} <= set(dir(mainstem))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = mainstem.nonsense
