"""Streaming text token by token gives the same as decoding all tokens, for every kind of vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as BackendTokenizer

from mainstem.errors import ModelLoadError
from mainstem.model import ModelFiles
from mainstem.tokens import DetokenizerStream, Tokenizer
from mainstem.tokens.detokenize import TokenBytes, decode_all
from tests.support.tiny_models import VOCAB_SIZE, save_tiny_tokenizer

ids_lists = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=40)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(save_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def sentencepiece_like(*, strips: bool = True) -> BackendTokenizer:
    """A Llama-2-like vocabulary: "▁" for a space, `<0xNN>` for single bytes, letters, and two words."""
    letters = ["▁", *"abcé", "▁the", "▁▁"]
    vocab = {token: i for i, token in enumerate(["<s>", *(f"<0x{b:02X}>" for b in range(256)), *letters])}
    backend = BackendTokenizer(models.BPE(vocab, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if strips:
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens([AddedToken("<s>", special=True)])
    return backend


def stream_all(stream: DetokenizerStream, ids: list[int]) -> str:
    return "".join(stream.push(i) for i in ids) + stream.flush()


@given(ids=ids_lists, skip=st.booleans())
def test_a_byte_level_stream_adds_up_to_the_decoded_whole(tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert stream_all(tokenizer.stream(skip_special_tokens=skip), ids) == whole


@given(ids=ids_lists, skip=st.booleans())
def test_byte_level_decoding_is_that_of_the_tokenizers_library(
    tokenizer: Tokenizer, ids: list[int], skip: bool
) -> None:
    backend = tokenizer._backend
    assert tokenizer.decode(ids, skip_special_tokens=skip) == backend.decode(ids, skip_special_tokens=skip)


@given(ids=st.lists(st.integers(0, 49_151), max_size=40))
def test_the_embedded_models_stream_adds_up_to_the_decoded_whole(embedded_tokenizer: Tokenizer, ids: list[int]) -> None:
    whole = embedded_tokenizer.decode(ids)
    assert stream_all(embedded_tokenizer.stream(), ids) == whole
    assert whole == embedded_tokenizer._backend.decode(ids)


@pytest.fixture(scope="module")
def embedded_tokenizer(embedded_model: ModelFiles) -> Tokenizer:
    return Tokenizer.load(embedded_model.folder)


@given(text=st.text(max_size=30))
def test_streamed_pieces_are_always_whole_characters(tokenizer: Tokenizer, text: str) -> None:
    stream = tokenizer.stream()
    pieces = [stream.push(int(i)) for i in tokenizer.encode(text)]
    assert "".join(pieces) == text
    assert stream.flush() == ""


@pytest.mark.parametrize("strips", [True, False])
@given(ids=st.lists(st.integers(0, 263), max_size=30))
def test_a_sentencepiece_stream_adds_up_to_the_decoded_whole(strips: bool, ids: list[int]) -> None:
    token_bytes = TokenBytes(sentencepiece_like(strips=strips))
    whole = decode_all(token_bytes, ids, skip_special_tokens=True)
    assert stream_all(DetokenizerStream(token_bytes), ids) == whole


@pytest.mark.parametrize("strips", [True, False])
@given(text=st.text("abé the東🌳", max_size=20))
def test_sentencepiece_decoding_of_text_is_that_of_the_tokenizers_library(strips: bool, text: str) -> None:
    backend = sentencepiece_like(strips=strips)
    backend.normalizer = normalizers.Replace(" ", "▁")
    ids = backend.encode(text).ids
    whole = decode_all(TokenBytes(backend), ids, skip_special_tokens=True)
    assert whole == backend.decode(ids)


def test_one_leading_space_of_a_sentencepiece_text_is_dropped_unless_it_continues_a_text() -> None:
    token_bytes = TokenBytes(sentencepiece_like())
    ids = [262, 258]  # "▁the", "a"
    assert stream_all(DetokenizerStream(token_bytes), ids) == "thea"
    assert stream_all(DetokenizerStream(token_bytes, continuation=True), ids) == " thea"


def test_metaspace_vocabularies_are_read() -> None:
    backend = sentencepiece_like()
    backend.decoder = decoders.Metaspace()
    ids = [262, 262, 258]
    assert decode_all(TokenBytes(backend), ids, skip_special_tokens=True) == backend.decode(ids) == "the thea"


def test_a_character_in_pieces_appears_with_its_last_byte(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("東").tolist()
    assert len(ids) > 1
    stream = tokenizer.stream()
    assert [stream.push(i) for i in ids] == [""] * (len(ids) - 1) + ["東"]


def test_an_unfinished_character_is_flushed_as_a_replacement(tokenizer: Tokenizer) -> None:
    stream = tokenizer.stream()
    assert stream.push(tokenizer.encode("東").tolist()[0]) == ""
    assert stream.flush() == "\ufffd"


def test_a_stream_of_half_characters_costs_the_same_per_token_as_any_other(tokenizer: Tokenizer) -> None:
    half = tokenizer.encode("東").tolist()[0]
    stream = tokenizer.stream()
    assert sum(len(stream.push(half)) for _ in range(50_000)) == 49_999


def test_ids_that_no_token_has_say_nothing(tmp_path: Path) -> None:
    (save_tiny_tokenizer(tmp_path) / "config.json").write_text('{"vocab_size": 600}')
    padded = Tokenizer.load(tmp_path)
    assert padded.vocab_size == 600
    assert padded.decode([599]) == ""
    assert stream_all(padded.stream(), [599]) == ""


def test_a_decoder_that_cannot_be_read_token_by_token_is_refused() -> None:
    backend = sentencepiece_like()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ModelLoadError, match="WordPiece"):
        TokenBytes(backend)


def test_a_vocabulary_without_a_decoder_is_refused() -> None:
    backend = BackendTokenizer(models.BPE())
    with pytest.raises(ModelLoadError, match="none"):
        TokenBytes(backend)
