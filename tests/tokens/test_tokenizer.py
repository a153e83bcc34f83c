"""Text to ids and back, what ends a reply, and what is refused."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import processors
from transformers import AutoTokenizer

from mainstem.errors import InvalidRequest, ModelLoadError
from mainstem.model import ModelFiles
from mainstem.tokens import Tokenizer
from tests.support.tiny_models import SPECIAL_TOKENS, save_tiny_tokenizer

END_OF_TEXT, TURN_START, TURN_END = range(3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@given(text=st.text(max_size=60))
def test_text_survives_encoding_and_decoding(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_ids_are_int32(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("The river").dtype == np.int32
    assert tokenizer.encode("").dtype == np.int32


def test_ids_are_those_of_transformers(tokenizer: Tokenizer, folder: Path) -> None:
    text = "The river runs\n\nto the sea<|im_end|>, Straße 12"
    reference = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.encode(text).tolist() == reference.encode(text, add_special_tokens=False)


def test_text_of_a_special_token_becomes_the_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a<|im_end|>").tolist()[-1] == TURN_END


def test_a_begin_of_text_token_is_added_to_plain_prompts_only(folder: Path) -> None:
    loaded = AutoTokenizer.from_pretrained(folder)
    loaded.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", END_OF_TEXT)]
    )
    tokenizer = Tokenizer(loaded, vocab_size=0, eos_token_ids=())
    plain = tokenizer.encode("sea").tolist()
    assert tokenizer.encode_prompt("sea").tolist() == [END_OF_TEXT, *plain]
    assert tokenizer.encode_chat([{"role": "user", "content": "sea"}]).tolist()[0] == TURN_START


def test_a_prompt_is_never_cut_or_filled_up(tmp_path: Path) -> None:
    path = save_tiny_tokenizer(tmp_path) / "tokenizer.json"
    content = json.loads(path.read_text())
    content["truncation"] = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    path.write_text(json.dumps(content))
    assert len(Tokenizer.load(tmp_path).encode("the quick brown fox jumps over the lazy dog")) > 4


def test_text_is_split_as_the_file_says_whatever_the_model_type(tmp_path: Path) -> None:
    path = save_tiny_tokenizer(tmp_path) / "tokenizer.json"
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    content = json.loads(path.read_text())
    digits = {"type": "Digits", "individual_digits": True}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, content["pre_tokenizer"]]}
    path.write_text(json.dumps(content))
    expected = BackendTokenizer.from_file(str(path)).encode("a\n\n12").ids
    assert Tokenizer.load(tmp_path).encode("a\n\n12").tolist() == expected


def test_special_tokens_are_left_out_of_decoded_text_unless_asked_for(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("sea<|im_end|>")
    assert tokenizer.decode(ids) == "sea"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "sea<|im_end|>"


def test_token_bytes_join_to_the_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("Straße 東京").tolist()
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == "Straße 東京"
    assert tokenizer.token_text(TURN_END) == "<|im_end|>"


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "sea \ud83c end"])
def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(InvalidRequest, match="not valid Unicode"):
        tokenizer.encode(text)


def test_control_characters_are_text_like_any_other(tokenizer: Tokenizer) -> None:
    text = "a\x00b\x1b\x7f\ufeff\U0010ffff"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("wrong", [-1, 448, 2**40])
def test_decoding_an_id_beyond_the_vocabulary_is_refused(tokenizer: Tokenizer, wrong: int) -> None:
    with pytest.raises(InvalidRequest, match=f"{wrong} is not a token id"):
        tokenizer.decode([5, wrong])


def test_threads_may_share_a_tokenizer(tokenizer: Tokenizer) -> None:
    texts = [f"the river number {i} runs to the sea" * 20 for i in range(64)]
    expected = [tokenizer.encode(text).tolist() for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda text: tokenizer.encode(text).tolist(), texts)) == expected


def test_replies_end_at_the_ids_that_the_models_files_name(tmp_path: Path) -> None:
    save_tiny_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 9}')
    assert Tokenizer.load(tmp_path).eos_token_ids == {7, 8, 9, TURN_END}


def test_the_end_of_turn_ends_replies_even_if_the_files_name_only_the_end_of_text(tmp_path: Path) -> None:
    path = save_tiny_tokenizer(tmp_path) / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"eos_token": SPECIAL_TOKENS[END_OF_TEXT]}
    path.write_text(json.dumps(config))
    assert Tokenizer.load(tmp_path).eos_token_ids == {END_OF_TEXT, TURN_END}


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"The tokenizer in .* cannot be read"):
        Tokenizer.load(tmp_path)


def test_a_broken_generation_config_is_refused(tmp_path: Path) -> None:
    (save_tiny_tokenizer(tmp_path) / "generation_config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"generation_config\.json cannot be read"):
        Tokenizer.load(tmp_path)


def test_the_embedded_model_splits_text_as_it_was_trained_to(embedded_model: ModelFiles) -> None:
    tokenizer = Tokenizer.load(embedded_model.folder)
    tokens = [tokenizer.token_text(i) for i in tokenizer.encode("x =    12 + 345\n\n1.").tolist()]
    assert tokens == ["x", " =", "    ", "1", "2", " +", " ", "3", "4", "5", "\n\n", "1", "."]
    assert tokenizer.encode_prompt("x").tolist() == tokenizer.encode("x").tolist()
    assert tokenizer.eos_token_ids == {2}


def test_a_batch_of_texts_gives_the_ids_of_each(tokenizer: Tokenizer) -> None:
    texts = ["The river", "", "naïve café <|im_end|>", "The river"]
    assert [ids.tolist() for ids in tokenizer.encode_batch(texts)] == [tokenizer.encode(t).tolist() for t in texts]
    assert tokenizer.encode_batch([]) == []
