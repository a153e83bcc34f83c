"""The ids of a history are those that were generated, and always spell the text; namespaces share nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer
from transformers import PreTrainedTokenizerFast

from mainstem.tokens import KnownPrompt, StopStrings, TokenHistory, Tokenizer
from mainstem.tokens.seams import Seams
from mainstem.tools import ReplyMeaning
from mainstem.tools.syntax import Hermes
from tests.support.tiny_models import VOCAB_SIZE, save_tiny_tokenizer
from tests.tokens.test_detokenize import sentencepiece_like

END = 2
SYSTEM = {"role": "system", "content": "Be brief."}
MEANING = ReplyMeaning(Hermes(), ["look"])
plain_ids = st.lists(st.integers(3, VOCAB_SIZE - 1), max_size=12)
any_ids = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=12)


@pytest.fixture(scope="module", params=[1, 1000], autouse=True)
def shortest(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every conversation is known in one piece, or none: nothing else may differ."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mainstem.tokens.history.SHORTEST", request.param)
        patch.setattr("mainstem.tokens.history.LOOK_AFTER", 1)
        yield


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(save_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def chats(tokenizer: Tokenizer) -> Chats:
    return Chats(tokenizer)


class Chats:
    """A server's side of conversations: prompts from messages, and replies that it remembers."""

    def __init__(self, tokenizer: Tokenizer, *, max_entries: int = 1000, max_bytes: int = 2**20) -> None:
        self.tokenizer = tokenizer
        self.history = TokenHistory(tokenizer, max_entries=max_entries, max_bytes=max_bytes)

    def ask(self, messages: Sequence[Any], *, namespace: tuple[Any, ...] = (), **options: Any) -> KnownPrompt:
        """The prompt of messages; texts stand for what user and assistant say in turn."""
        texts = [m if isinstance(m, dict) else {"role": ("user", "assistant")[i % 2], "content": m}
                 for i, m in enumerate(messages)]  # fmt: skip
        text = self.tokenizer.render_chat(texts, **options)
        return self.history.encode(text, namespace=namespace, meaning=MEANING)

    def reply(self, prompt: KnownPrompt, ids: Sequence[int], *, stop: str = "") -> str:
        """What the client is shown of a reply of these tokens, which is remembered."""
        stream, stops = self.tokenizer.stream(continuation=True), StopStrings([stop] if stop else [])
        text = "".join(stops.push(stream.push(i)).text for i in ids if i != END)
        text += stops.push(stream.flush()).text + stops.flush()
        self.history.remember(prompt, ids, text)
        return text

    def letters(self, text: str) -> list[int]:
        """Ids of a text that no tokenizer would choose: one for each byte."""
        return [int(i) for letter in text for i in self.tokenizer.encode(letter)]

    def spelled(self, prompt: KnownPrompt) -> str:
        return self.tokenizer.decode(prompt.ids, skip_special_tokens=False)


def starts_with(prompt: KnownPrompt, *beginning: Any) -> bool:
    ids = np.concatenate(beginning)
    return np.array_equal(prompt.ids[: len(ids)], ids)


def test_a_reply_that_comes_back_has_the_ids_that_were_generated(chats: Chats) -> None:
    first = chats.ask(["Where?"])
    ids = [*chats.letters("the river"), END]
    assert ids[:-1] != chats.tokenizer.encode("the river").tolist()
    text = chats.reply(first, ids)
    second = chats.ask(["Where?", text, "And then?"])
    assert starts_with(second, first.ids, ids)
    assert chats.spelled(second) == second.text == chats.tokenizer.render_chat(
        [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": text},
         {"role": "user", "content": "And then?"}]
    )  # fmt: skip


def test_turn_after_turn_only_what_is_new_is_tokenized(chats: Chats) -> None:
    said: list[str] = ["one"]
    before: list[Any] = [[]]
    for turn in range(20):
        prompt = chats.ask(said)
        assert starts_with(prompt, *before)
        assert prompt.tokenized < 40
        ids = [*chats.letters(f"reply {turn}"), END]
        before = [prompt.ids, ids]
        said += [chats.reply(prompt, ids), f"then {turn}"]


def test_spans_say_where_the_tokens_are_from(chats: Chats) -> None:
    first = chats.ask([SYSTEM, {"role": "user", "content": "Where?"}])
    assert {span.origin for span in first.spans} == {"new"}
    text = chats.reply(first, [*chats.letters("here"), END])
    prompt = chats.ask([SYSTEM, {"role": "user", "content": "Where?"}, {"role": "assistant", "content": text}, SYSTEM])
    spans = prompt.spans
    assert [span.origin for span in spans] == ["known", "generated", "new"]
    assert "".join(prompt.text[span.start : span.stop] for span in spans) == prompt.text
    assert [span.first for span in spans[1:]] == [span.end for span in spans[:-1]]
    for span in spans:
        assert (
            chats.tokenizer.decode(prompt.ids[span.first : span.end], skip_special_tokens=False)
            == (prompt.text[span.start : span.stop])
        )
    assert "here" in prompt.text[spans[1].start : spans[1].stop]


def test_an_edited_message_falls_back_at_the_edit(chats: Chats) -> None:
    first = chats.ask(["one"])
    ids = [*chats.letters("the river runs to the sea"), END]
    text = chats.reply(first, ids)
    edited = chats.ask(["one", text.replace("sea", "hills"), "two"])
    kept = chats.letters("the river runs to the")
    assert starts_with(edited, first.ids, kept)
    assert chats.spelled(edited) == edited.text
    assert "hills" in edited.text
    other = chats.ask(["uno", text, "two"])
    assert other.ids.tolist() == chats.tokenizer.encode(other.text).tolist()


def test_conversations_with_equal_beginnings_keep_their_own_replies(chats: Chats) -> None:
    first = chats.ask(["one"])
    replies = {chats.reply(first, ids): ids for ids in ([*chats.letters(t), END] for t in ("a", "ab", "b", "the b"))}
    for text, ids in replies.items():
        assert starts_with(chats.ask(["one", text, "two"]), first.ids, ids)


def test_of_two_spellings_of_one_text_the_latest_counts(chats: Chats) -> None:
    first = chats.ask(["one"])
    chats.reply(first, [*chats.letters("river"), END])
    ids = [*chats.tokenizer.encode("river").tolist(), END]
    text = chats.reply(first, ids)
    assert starts_with(chats.ask(["one", text, "two"]), first.ids, ids)


def test_an_aborted_reply_keeps_what_was_said(chats: Chats) -> None:
    first = chats.ask(["one"])
    ids = chats.letters("the river runs")
    assert starts_with(chats.ask(["one", chats.reply(first, ids), "go on"]), first.ids, ids)
    # The client may have read less than was sent.
    assert starts_with(chats.ask(["one", "the riv", "go on"]), first.ids, chats.letters("the riv"))


def test_a_stop_string_may_cut_a_token(chats: Chats) -> None:
    word = chats.tokenizer.encode(" the").tolist()
    assert len(word) == 1
    first = chats.ask(["one"])
    text = chats.reply(first, [*chats.letters("runs"), *word], stop="he")
    assert text == "runs t"
    second = chats.ask(["one", text, "two"])
    assert starts_with(second, first.ids, chats.letters("runs"))
    assert chats.spelled(second) == second.text


def test_bytes_that_are_no_text_keep_their_ids(chats: Chats) -> None:
    first = chats.ask(["one"])
    halves = [int(chats.tokenizer.encode("杳")[0]), *chats.letters("a"), int(chats.tokenizer.encode("杳")[0]), END]
    text = chats.reply(first, halves)
    assert text == "\ufffda\ufffd"
    assert starts_with(chats.ask(["one", text, "two"]), first.ids, halves)


def test_a_mark_that_the_client_was_not_shown_is_kept_where_the_reply_comes_back_as_it_was(chats: Chats) -> None:
    first = chats.ask(["one"])
    ids = [*chats.letters("ab"), 0, *chats.letters("cd ef"), END]
    text = chats.reply(first, ids)
    assert text == "abcd ef"
    second = chats.ask(["one", text, "two"])
    assert starts_with(second, first.ids, ids)
    assert chats.spelled(second) == second.text
    assert "ab<|endoftext|>cd ef" in second.text
    edited = chats.ask(["one", "abcd eh", "two"])
    assert starts_with(edited, first.ids, ids[:5])
    assert chats.spelled(edited) == edited.text


def test_a_reply_that_the_client_began_is_found_whole(chats: Chats) -> None:
    begun = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "the river"}]
    rendered = chats.tokenizer.render_chat(begun[:1]) + "the river"
    first = chats.history.encode(rendered)
    ids = [*chats.letters(" runs"), END]
    text = chats.reply(first, ids)
    assert starts_with(chats.ask(["one", "the river" + text, "two"]), first.ids, ids)
    # What is begun may itself be the beginning of an earlier reply.
    again = chats.history.encode(rendered + " ru")
    assert starts_with(again, first.ids, chats.letters(" ru"))


def called(arguments: str, content: str | None = None) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


CALL = (
    'Let me see.\n\n<tool_call>\n{"name": "look",  "arguments": {"at": "rain", "deep": true, "n": 1.0}}\n</tool_call>'
)


@pytest.mark.parametrize(
    "arguments",
    [
        '{"n":1.0,"deep":true,"at":"rain"}',
        '{"at": "rain", "deep": true, "n": 1}',
        '{"at": "r\\u0061in", "deep": true, "n": 1}',
    ],
)
def test_a_call_in_another_spelling_is_the_one_that_was_generated(chats: Chats, arguments: str) -> None:
    first = chats.ask(["one"])
    ids = [*chats.letters(CALL), END]
    chats.reply(first, ids)
    answer = {"role": "tool", "tool_call_id": "1", "content": "wet"}
    messages = [{"role": "user", "content": "one"}, called(arguments, "Let me see."), answer]
    second = chats.ask(messages)
    assert starts_with(second, first.ids, ids)
    assert CALL in second.text
    assert chats.spelled(second) == second.text


@pytest.mark.parametrize(
    "arguments", ['{"at": "rain", "deep": 1, "n": 1.0}', '{"at": "rain"}', '{"at": "rain", "deep": tru']
)
def test_another_call_is_another_call(chats: Chats, arguments: str) -> None:
    first = chats.ask(["one"])
    chats.reply(first, [*chats.letters(CALL), END])
    second = chats.ask([{"role": "user", "content": "one"}, called(arguments, "Let me see."), SYSTEM])
    assert CALL not in second.text
    assert arguments in second.text
    assert chats.spelled(second) == second.text


def test_white_space_that_a_client_strips_does_not_count(chats: Chats) -> None:
    first = chats.ask(["one"])
    ids = [*chats.letters("\nthe river \n"), END]
    second = chats.ask(["one", chats.reply(first, ids).strip(), "two"])
    assert starts_with(second, first.ids, ids)


@pytest.mark.parametrize("text", ["the river \n", "the river\t", " \nthe river", "\n\nthe river\n", "the river  "])
def test_white_space_that_a_client_adds_is_in_the_prompt(chats: Chats, text: str) -> None:
    first = chats.ask(["one"])
    chats.reply(first, [*chats.letters("the river"), END])
    for more in (["two"], ["two", "three", "four"]):
        prompt = chats.ask(["one", text, *more])
        assert f"{text}<|im_end|>" in prompt.text
        assert chats.spelled(prompt) == prompt.text
        chats.reply(prompt, [*chats.letters("three"), END])


def test_of_an_edited_call_only_what_was_generated_is_called_so(chats: Chats) -> None:
    first = chats.ask(["one"])
    chats.reply(first, [*chats.letters(CALL), END])
    messages = [{"role": "user", "content": "one"}, called('{"place": "the sea"}', "Let me see."), SYSTEM]
    prompt = chats.ask(messages)
    assert [span.origin for span in prompt.spans] == ["known", "generated", "new"]
    texts = [prompt.text[span.start : span.stop] for span in prompt.spans]
    assert "".join(texts) == prompt.text
    assert CALL.startswith(texts[1])
    assert "the sea" in texts[2]
    for span, text in zip(prompt.spans, texts, strict=True):
        assert chats.tokenizer.decode(prompt.ids[span.first : span.end], skip_special_tokens=False) == text
    assert prompt.tokenized == prompt.spans[2].end - prompt.spans[2].first
    chats.reply(prompt, [*chats.letters("done"), END])
    later = chats.ask([*messages, {"role": "assistant", "content": "done"}, SYSTEM])
    assert [span.origin for span in later.spans] == ["known", "generated", "known", "generated", "new"]


@pytest.mark.parametrize(("mine", "other"), [((), ("b",)), (("a",), ()), (("a", "bc"), ("ab", "c"))])
def test_namespaces_have_nothing_in_common(chats: Chats, mine: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    first = chats.ask(["one"], namespace=mine)
    text = chats.reply(first, [*chats.letters("the river"), END])
    prompt = chats.ask(["one", text, "two"], namespace=other)
    assert prompt.ids.tolist() == chats.tokenizer.encode(prompt.text).tolist()
    assert prompt.tokenized == len(prompt.ids)


@pytest.mark.parametrize("bound", [{"max_entries": 30}, {"max_bytes": 30_000}])
def test_the_memory_is_bounded_and_the_latest_stay(tokenizer: Tokenizer, bound: dict[str, int]) -> None:
    chats = Chats(tokenizer, **bound)
    for turn in range(200):
        namespace = ("tenant", "a", "salt", turn % 50)
        first = chats.ask([f"question {turn}"], namespace=namespace)
        ids = [*chats.letters(f"answer {turn}"), END]
        text = chats.reply(first, ids)
        stats = chats.history.stats()
        assert stats.entries <= bound.get("max_entries", 10**9)
        assert stats.bytes <= bound.get("max_bytes", 10**9)
        assert starts_with(chats.ask([f"question {turn}", text, "on"], namespace=namespace), first.ids, ids)
    assert len(chats.history._roots) <= 30


@pytest.mark.parametrize("bound", [{"max_entries": 30}, {"max_bytes": 30_000}])
def test_one_tenant_cannot_push_out_the_history_of_another(tokenizer: Tokenizer, bound: dict[str, int]) -> None:
    chats = Chats(tokenizer, **bound)
    first = chats.ask(["Where?"], namespace=("tenant", "a", "model", "m"))
    ids = [*chats.letters("the river"), END]
    text = chats.reply(first, ids)
    for turn in range(100):
        theirs = chats.ask([f"Question {turn}"], namespace=("tenant", "b", "model", "m", "salt", str(turn)))
        chats.reply(theirs, [*chats.letters(f"answer {turn}"), END])
    again = chats.ask(["Where?", text, "And then?"], namespace=("tenant", "a", "model", "m"))
    assert starts_with(again, first.ids, ids)
    latest = chats.ask(["Question 99", "answer 99"], namespace=("tenant", "b", "model", "m", "salt", "99"))
    assert latest.tokenized < len(latest.ids) / 2


def test_many_replies_to_one_prompt_are_bounded_too(tokenizer: Tokenizer) -> None:
    chats = Chats(tokenizer, max_entries=20)
    first = chats.ask(["one"])
    for number in range(100):
        chats.reply(first, [*chats.letters(f"{number}"), END])
    assert chats.history.stats().entries == 20
    assert starts_with(chats.ask(["one", "99", "two"]), first.ids, chats.letters("99"))


def test_without_entries_every_prompt_is_tokenized_anew(tokenizer: Tokenizer) -> None:
    chats = Chats(tokenizer, max_entries=0)
    text = chats.reply(chats.ask(["one"]), [*chats.letters("the river"), END])
    prompt = chats.ask(["one", text, "two"])
    assert prompt.ids.tolist() == tokenizer.encode(prompt.text).tolist()
    assert chats.history.stats().entries == 0


@given(
    turns=st.lists(st.tuples(st.text(max_size=12), any_ids, st.integers(0, 12), st.booleans()), min_size=1, max_size=5),
    stop=st.sampled_from(["", "e", "th", "\ufffd", " "]),
    mark=st.sampled_from(["", "<|im_end|>", "<|im_start|>", "<|im"]),
)
def test_the_ids_always_spell_the_text(tokenizer: Tokenizer, turns: list[Any], stop: str, mark: str) -> None:
    """Random texts, with marks in them, and replies of random tokens, cut anywhere by stop strings or by the client."""
    chats = Chats(tokenizer)
    said: list[str] = []
    for question, ids, cut, ends in turns:
        said.append(question + mark)
        prompt = chats.ask(said)
        assert chats.spelled(prompt) == prompt.text
        text = chats.reply(prompt, [*ids, END] if ends else ids, stop=stop)
        said.append(text[:-cut] if cut and len(text) > cut else text)
        again = chats.ask(said)
        assert chats.spelled(again) == again.text


@given(
    turns=st.lists(
        st.tuples(st.text(max_size=12), plain_ids, st.integers(0, 12), st.booleans()), min_size=1, max_size=5
    ),
    stop=st.sampled_from(["", "e", "th", "\ufffd", " "]),
)
def test_the_text_is_the_rendered_one(tokenizer: Tokenizer, turns: list[Any], stop: str) -> None:
    """To the character, wherever replies without hidden marks were cut."""
    chats = Chats(tokenizer)
    said: list[dict[str, str]] = []
    for question, ids, cut, ends in turns:
        said.append({"role": "user", "content": question})
        prompt = chats.ask(said)
        assert prompt.text == tokenizer.render_chat(said)
        assert chats.spelled(prompt) == prompt.text
        text = chats.reply(prompt, [*ids, END] if ends else ids, stop=stop)
        said.append({"role": "assistant", "content": text[: len(text) - cut] if cut < len(text) else text})


@given(turns=st.lists(st.tuples(st.text(max_size=12), any_ids), min_size=1, max_size=5))
def test_no_token_of_a_reply_is_lost(tokenizer: Tokenizer, turns: list[Any]) -> None:
    chats = Chats(tokenizer)
    said: list[str] = []
    turns = [(question, [i for i in ids if i != END]) for question, ids in turns]
    before: list[Any] = []
    for question, ids in turns:
        said.append(question)
        prompt = chats.ask(said)
        if before:
            assert starts_with(prompt, *before)
        said.append(chats.reply(prompt, [*ids, END]))
        before = [prompt.ids, ids] if ids else [prompt.ids]


@given(
    texts=st.lists(st.text(alphabet="abc é\n", max_size=6), min_size=1, max_size=6),
    mark=st.sampled_from(["<s>", "</s>"]),
)
@pytest.mark.parametrize("spaces", ["prepended", "first", "always", "byte level", "swallowed"])
def test_parts_have_the_tokens_that_they_have_in_the_whole(spaces: str, texts: list[str], mark: str) -> None:
    tokenizer = made(spaces)
    text = mark.join(texts)
    history = TokenHistory(tokenizer, max_entries=10, max_bytes=2**20)
    parts = Seams(tokenizer).cut(text)
    assert "".join(parts) == text
    assert len(parts) == text.count("</s>") + 1
    assert history.encode(text).ids.tolist() == tokenizer.encode(text).tolist()


@pytest.mark.parametrize("spaces", ["prepended", "first", "always"])
def test_a_cut_reply_of_a_vocabulary_that_adds_spaces_is_still_spelled_exactly(spaces: str) -> None:
    tokenizer = made(spaces)
    history = TokenHistory(tokenizer, max_entries=10, max_bytes=2**20)
    opening = "<s>a</s>b"
    first = history.encode(opening)
    ids = [int(i) for letter in "abcab" for i in tokenizer.encode("<s>" + letter)[1:][-1:]]
    history.remember(first, ids, "abca")
    second = history.encode(opening + "abca</s>c")
    whole = tokenizer.encode(second.text).tolist()
    kept = second.ids.tolist()[: len(first.ids) + 4] == [*first.ids.tolist(), *ids[:4]]
    assert kept or second.ids.tolist() == whole


def made(spaces: str) -> Tokenizer:
    """A small tokenizer that treats spaces in one of the ways that there are, with `</s>` as its end."""
    backend: BackendTokenizer = sentencepiece_like()
    match spaces:
        case "prepended":
            backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        case "first" | "always":
            backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=spaces)
        case _:
            backend = BackendTokenizer.from_str(bytes_alone())
    mark = AddedToken("</s>", special=True, rstrip=spaces == "swallowed")
    backend.add_special_tokens([AddedToken("<s>", special=True), mark])
    loaded: Any = PreTrainedTokenizerFast
    end = int(backend.token_to_id("</s>") or 0)
    return Tokenizer(loaded(tokenizer_object=backend, eos_token=mark), vocab_size=0, eos_token_ids=[end])


def bytes_alone() -> str:
    from tokenizers import decoders, models

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = BackendTokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return str(backend.to_str())


def test_a_tokenizer_whose_end_is_no_mark_has_prompts_of_one_part() -> None:
    tokenizer = made("byte level")
    plain = Tokenizer(tokenizer._loaded, vocab_size=0, eos_token_ids=[int(tokenizer.encode("c")[0])])
    history = TokenHistory(plain, max_entries=10, max_bytes=2**20)
    text = "a</s>\nbc c"
    assert Seams(plain).cut(text) == [text]
    assert history.encode(text).ids.tolist() == tokenizer.encode(text).tolist()
