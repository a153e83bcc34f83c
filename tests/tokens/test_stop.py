"""Stop strings end a text before their first match, however the text was cut into pieces."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mainstem.tokens import StopStrings, StopUpdate

# Few letters, so that stop strings overlap themselves and each other.
texts = st.text("abc", max_size=30)
stops = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)


def feed(stop_strings: StopStrings, pieces: list[str]) -> str:
    return "".join(stop_strings.push(piece).text for piece in pieces) + stop_strings.flush()


def cut(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


@given(text=texts, stop=stops, places=st.lists(st.integers(0, 100), max_size=10))
def test_text_ends_where_a_plain_search_of_the_whole_finds_the_first_match(
    text: str, stop: list[str], places: list[int]
) -> None:
    found = [(text.find(s), len(s), s) for s in stop if s in text]
    expected = text[: min(found)[0]] if found else text
    stop_strings = StopStrings(stop)
    assert feed(stop_strings, cut(text, places)) == expected
    assert stop_strings.matched == (min(found)[2] if found else None)


@given(text=texts, stop=stops, places=st.lists(st.integers(0, 100), max_size=10))
def test_only_the_possible_beginning_of_a_stop_string_is_held_back(
    text: str, stop: list[str], places: list[int]
) -> None:
    stop_strings, fed, shown = StopStrings(stop), "", ""
    for piece in cut(text, places):
        update = stop_strings.push(piece)
        fed, shown = fed + piece, shown + update.text
        if update.matched is not None:
            return
        held = fed[len(shown) :]
        assert fed.startswith(shown)
        assert held == "" or any(s.startswith(held) and s != held for s in stop)


def test_a_match_across_pieces_is_found_and_no_part_of_it_shown() -> None:
    stop_strings = StopStrings(["Observation:"])
    assert stop_strings.push("Thought.\nObser") == StopUpdate("Thought.\n", None)
    assert stop_strings.push("vation: 3") == StopUpdate("", "Observation:")


def test_held_back_text_is_given_out_when_it_turns_out_to_be_no_stop_string() -> None:
    stop_strings = StopStrings(["Observation:"])
    stop_strings.push("Obser")
    assert stop_strings.push("ve this") == StopUpdate("Observe this", None)


def test_nothing_comes_after_a_match() -> None:
    stop_strings = StopStrings(["\n"])
    stop_strings.push("one\n")
    assert stop_strings.push("two") == StopUpdate("", "\n")
    assert stop_strings.flush() == ""


def test_an_earlier_match_that_is_not_complete_yet_is_waited_for() -> None:
    stop_strings = StopStrings(["bcd", "c"])
    assert stop_strings.push("abc") == StopUpdate("a", None)
    assert stop_strings.push("d") == StopUpdate("", "bcd")


def test_a_later_match_counts_once_the_earlier_one_fails_to_come() -> None:
    stop_strings = StopStrings(["bcd", "c"])
    stop_strings.push("abc")
    assert stop_strings.flush() == "b"
    assert stop_strings.matched == "c"


def test_without_stop_strings_everything_passes() -> None:
    assert feed(StopStrings([]), ["a", "", "b"]) == "ab"
