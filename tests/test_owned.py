"""Tests of memories that several owners share."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.owned import Owned


def test_the_one_who_has_most_gives_up_what_it_used_longest_ago() -> None:
    owned: Owned[str] = Owned()
    for entry, owner, size in (("a", "x", 5), ("b", "y", 90), ("c", "x", 5), ("d", "x", 5)):
        owned.add(entry, owner, size)
    assert owned.first(by_size=True) == "b"
    assert owned.first(by_size=False) == "a"
    owned.use("a")
    assert owned.first(by_size=False) == "c"


def test_an_empty_one_has_nothing_to_give_up() -> None:
    owned: Owned[str] = Owned()
    owned.add("a", "x", 5)
    owned.remove("a")
    assert (len(owned), owned.size, "a" in owned) == (0, 0, False)
    with pytest.raises(ValueError, match="empty"):
        owned.first(by_size=True)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=60), st.integers(1, 40), st.booleans())
def test_nobody_loses_what_is_within_an_equal_part(arrivals: list[tuple[int, int]], bound: int, by_size: bool) -> None:
    owned: Owned[int] = Owned()
    kept: dict[int, dict[int, int]] = defaultdict(dict)

    def load(owner: int) -> int:
        return sum(kept[owner].values()) if by_size else len(kept[owner])

    for entry, (owner, size) in enumerate(arrivals):
        owned.add(entry, owner, size)
        kept[owner][entry] = size
        while (owned.size if by_size else len(owned)) > bound:
            gone = owned.first(by_size=by_size)
            loser = arrivals[gone][0]
            assert load(loser) * sum(map(bool, kept.values())) >= bound
            assert gone == min(kept[loser])
            owned.remove(gone)
            del kept[loser][gone]
        assert owned.size == sum(sum(sizes.values()) for sizes in kept.values())
