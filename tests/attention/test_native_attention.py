"""Tests of what only the native extension promises: any head size and dtype, the same bits however a token is run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from mainstem.attention import KVPool, SequenceRows, backend_for, plan_step
from mainstem.errors import ConfigError
from mainstem.native import library
from mainstem.pages import runs_of
from tests.attention.backends import Maker, native_makers, needs_native
from tests.attention.reference import dense_attention

pytestmark = needs_native
NATIVE = pytest.mark.parametrize("make", native_makers())


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Tokens:
    """Queries, keys and values of the tokens of one sequence, whose KV lies in the given slots of a pool."""

    def __init__(self, slots: list[int], *, heads: int = 6, kv_heads: int = 2, dim: int = 16, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.slots = np.array(slots, np.int32)
        self.q = torch.randn(heads, len(slots), dim, generator=generator)
        self.k = torch.randn(kv_heads, len(slots), dim, generator=generator)
        self.v = torch.randn(kv_heads, len(slots), dim, generator=generator)


def pool_of(*sequences: Tokens, dtype: torch.dtype = torch.float32) -> KVPool:
    """A pool that holds the KV of the sequences, and nothing but infinities elsewhere."""
    kv_heads, _, dim = sequences[0].k.shape
    size = 1 + max(int(tokens.slots.max()) for tokens in sequences)
    pool = KVPool(
        num_layers=1, num_slots=size, num_kv_heads=kv_heads, head_dim=dim, dtype=dtype, device=torch.device("cpu")
    )
    for memory in (pool.keys[0], pool.values[0]):
        memory.fill_(torch.inf)
    for tokens in sequences:
        pool.write(0, torch.from_numpy(tokens.slots).long(), tokens.k[None].to(dtype), tokens.v[None].to(dtype))
    return pool


def attend(make: Maker, pool: KVPool, *parts: tuple[Tokens, int, int], cascade: bool = True) -> list[torch.Tensor]:
    """Run tokens `[begin, end)` of each part's sequence in one step; single tokens come first. (tokens, heads, dim)."""
    assert list(parts) == sorted(parts, key=lambda part: part[2] - part[1] > 1)
    sequences, row = [], 0
    for tokens, begin, end in parts:
        slots = tokens.slots[:end]
        sequences.append(SequenceRows(row, row + end - begin, slots, tuple(runs_of(slots))))
        row += end - begin
    picked = [(tokens, slice(begin, end)) for tokens, begin, end in parts]
    q, k, v = (torch.cat([getattr(t, name)[:, rows] for t, rows in picked], 1)[None] for name in ("q", "k", "v"))
    mapping = torch.from_numpy(np.concatenate([tokens.slots[rows] for tokens, rows in picked])).long()
    dtype = pool.keys[0].dtype
    out = make(plan_step(sequences, cascade=cascade), mapping, pool)(0, q, k.to(dtype), v.to(dtype), 0.25)
    return list(torch.split(out[0], [end - begin for _, begin, end in parts]))


def expected(pool: KVPool, tokens: Tokens, row: int) -> torch.Tensor:
    runs = runs_of(tokens.slots[: row + 1])
    return dense_attention(tokens.q[:, row], pool.keys[0].float(), pool.values[0].float(), runs, 0.25)


@NATIVE
@pytest.mark.parametrize("dim", [8, 24, 40, 64, 72, 80, 96, 128, 256])
def test_any_head_size(make: Maker, dim: int) -> None:
    tokens = Tokens(list(range(5, 205)), dim=dim)
    pool = pool_of(tokens)
    chunk, single = attend(make, pool, (tokens, 130, 200))[0], attend(make, pool, (tokens, 199, 200))[0]
    for row in (0, 33, 69):
        torch.testing.assert_close(chunk[row].double(), expected(pool, tokens, 130 + row), atol=1e-5, rtol=0)
    assert torch.equal(single[0], chunk[69])


@NATIVE
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (8, 8), (8, 1), (9, 3), (20, 4), (14, 2)])
def test_any_grouping_of_heads(make: Maker, heads: int, kv_heads: int) -> None:
    tokens = Tokens(list(range(90)), heads=heads, kv_heads=kv_heads)
    pool = pool_of(tokens)
    out = attend(make, pool, (tokens, 0, 90))[0]
    for row in (0, 1, 63, 64, 89):
        torch.testing.assert_close(out[row].double(), expected(pool, tokens, row), atol=1e-5, rtol=0)


@NATIVE
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_memory_is_read_exactly(make: Maker, dtype: torch.dtype) -> None:
    tokens = Tokens(list(range(150)))
    tokens.k[0, 3] *= 1e-6  # subnormal in float16
    tokens.v[1, 7] = 0.0
    pool = pool_of(tokens, dtype=dtype)
    out = attend(make, pool, (tokens, 149, 150))[0]
    torch.testing.assert_close(out[0].double(), expected(pool, tokens, 149), atol=1e-5, rtol=0)


@NATIVE
def test_queries_of_another_dtype_and_stride(make: Maker) -> None:
    tokens = Tokens(list(range(70)))
    pool = pool_of(tokens)
    exact = attend(make, pool, (tokens, 60, 70))[0]
    tokens.q = tokens.q.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(attend(make, pool, (tokens, 60, 70))[0], exact)
    tokens.q = tokens.q.bfloat16()
    rounded = attend(make, pool, (tokens, 60, 70))[0]
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, atol=0.05, rtol=0.05)


# -- the same bits ----------------------------------------------------------------------------------------------------


@NATIVE
@pytest.mark.parametrize("threads", [1, 3])
def test_the_same_bits_in_any_chunk(make: Maker, threads: int) -> None:
    torch.set_num_threads(threads)
    tokens = Tokens(list(range(7, 1307)))
    pool = pool_of(tokens)
    whole = attend(make, pool, (tokens, 0, 1300))[0]
    for begin, end in [(0, 1), (0, 513), (500, 700), (1023, 1029), (1298, 1300), (1299, 1300)]:
        assert torch.equal(attend(make, pool, (tokens, begin, end))[0], whole[begin:end])


@NATIVE
def test_the_same_bits_wherever_the_tokens_lie(make: Maker) -> None:
    together = Tokens(list(range(900)))
    scattered = Tokens(np.random.default_rng(1).permutation(900).tolist())
    a = attend(make, pool_of(together), (together, 880, 900))[0]
    b = attend(make, pool_of(scattered), (scattered, 880, 900))[0]
    assert torch.equal(a, b)


def branches(count: int, root: int, own: int) -> list[Tokens]:
    """Sequences that share `root` tokens and their slots, and have `own` tokens each."""
    trunk = Tokens(list(range(root)), seed=99)
    found = []
    for index in range(count):
        begin = root + index * (own + 3)
        tokens = Tokens([*range(root), *range(begin, begin + own)], seed=index)
        tokens.k[:, :root], tokens.v[:, :root] = trunk.k, trunk.v
        found.append(tokens)
    return found


@NATIVE
@pytest.mark.parametrize(("root", "own"), [(1000, 40), (512, 1), (300, 600), (64, 64), (1100, 700)])
def test_the_same_bits_alone_shared_and_with_others(make: Maker, root: int, own: int) -> None:
    several = branches(7, root, own)
    end = root + own
    pool = pool_of(*several)
    alone = [attend(make, pool, (tokens, end - 1, end))[0] for tokens in several]
    parts = [(tokens, end - 1, end) for tokens in several]
    other = Tokens(list(range(100_000, 100_333)), seed=50)
    together = attend(make, pool, *parts)
    unshared = attend(make, pool, *parts, cascade=False)
    mixed = attend(make, pool_of(*several, other), *parts, (other, 100, 333))
    for index in range(7):
        assert torch.equal(together[index], alone[index])
        assert torch.equal(unshared[index], alone[index])
        assert torch.equal(mixed[index], alone[index])


# -- what must not pass silently --------------------------------------------------------------------------------------


@NATIVE
@pytest.mark.parametrize("where", ["k", "v", "q"])
def test_numbers_that_are_not_finite_show_in_the_output(make: Maker, where: str) -> None:
    tokens = Tokens(list(range(100)))
    getattr(tokens, where)[:, 99, 3] = torch.nan
    before, itself = (attend(make, pool_of(tokens), (tokens, row, row + 1))[0] for row in (98, 99))
    assert torch.isfinite(before).all()
    assert torch.isnan(itself).any()


def test_very_large_scores_do_not_overflow() -> None:
    tokens = Tokens(list(range(80)))
    tokens.q *= 1e4
    pool = pool_of(tokens)
    out = attend(backend_for(pool, "native")._make, pool, (tokens, 79, 80))[0]
    torch.testing.assert_close(out[0].double(), expected(pool, tokens, 79), atol=1e-4, rtol=0)


def test_a_pool_that_the_extension_cannot_read_is_refused_or_left_to_pytorch() -> None:
    pool = pool_of(Tokens([0, 1], dim=12))
    assert backend_for(pool).name == "torch"
    with pytest.raises(ConfigError, match="multiples of 8"):
        backend_for(pool, "native")


def test_without_the_extension_pytorch_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstem.attention.backends.native_library", lambda: None)
    pool = pool_of(Tokens([0, 1]))
    assert backend_for(pool).name == "torch"
    with pytest.raises(ConfigError, match="install a C compiler"):
        backend_for(pool, "native")


def test_a_file_that_is_no_library_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    path = library.LIBRARY.parent / "build.py"
    monkeypatch.setattr(library, "LIBRARY", path)
    library.native_library.cache_clear()
    try:
        assert library.native_library() is None
    finally:
        library.native_library.cache_clear()
