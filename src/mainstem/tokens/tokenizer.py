"""A model's tokenizer: text and chats to token ids, token ids to text.

`transformers` loads it and renders chat templates; the Rust tokenizer inside it encodes, so that several threads may
use one `Tokenizer` at once. It knows nothing of the model's weights.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mainstem.errors import InvalidRequest, ModelLoadError
from mainstem.tokens.chat import read_messages, read_tools
from mainstem.tokens.conversation import Conversation
from mainstem.tokens.detokenize import DetokenizerStream, Spelling, TokenBytes, decode_all, spell
from mainstem.tokens.quiet import quiet_transformers
from mainstem.tokens.rendering import ChatTemplate

TokenArray: TypeAlias = NDArray[np.int32]

# Tokens that end a turn in the chat formats of the models served. Some models list only their end of text as the end.
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")


class Tokenizer:
    """Encodes, decodes and renders chats for one model. Safe to use from several threads.

    Args:
        loaded: a fast `transformers` tokenizer.
        vocab_size: how many logits the model has.
        eos_token_ids: ids that the model's configuration names as its end.
        canonical_tools: see `ChatTemplate`.

    Attributes:
        eos_token_ids: ids that end a reply.
        vocab_size: ids below it are valid; at least as many as the model has logits.
        special_ids: ids of tokens that are marks and not text.
        chat: the chat template, and what is known of it.
    """

    def __init__(
        self, loaded: Any, *, vocab_size: int, eos_token_ids: Iterable[int], canonical_tools: bool = True
    ) -> None:
        self._loaded = loaded
        self._backend = loaded.backend_tokenizer
        # A tokenizer.json may carry settings of its training; a prompt is never cut or filled up here.
        self._backend.no_truncation()
        self._backend.no_padding()
        self._bytes = TokenBytes(self._backend)
        self.special_ids = self._bytes.special_ids
        self.vocab_size = max(vocab_size, self._backend.get_vocab_size(with_added_tokens=True))
        ends = (self._backend.token_to_id(token) for token in _END_OF_TURN)
        self.eos_token_ids = frozenset(eos_token_ids) | {i for i in ends if i is not None and i in self.special_ids}
        speaks_chatml = all(self._backend.token_to_id(t) is not None for t in ("<|im_start|>", "<|im_end|>"))
        self.chat = ChatTemplate(loaded, speaks_chatml=speaks_chatml, canonical_tools=canonical_tools)

    @classmethod
    def load(cls, folder: Path, *, canonical_tools: bool = True) -> Tokenizer:
        """Reads the tokenizer of a Hugging Face folder. Never touches the network.

        Raises:
            ModelLoadError: when the folder has no tokenizer that can be read, or its chat template is of no use.
        """
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        # For some model types AutoTokenizer puts its own way of splitting text in place of that in tokenizer.json.
        reader: Any = PreTrainedTokenizerFast if (folder / "tokenizer.json").is_file() else AutoTokenizer
        try:
            with quiet_transformers():
                loaded = reader.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # transformers raises OSError, ValueError, KeyError, ImportError, ... as it comes
            raise ModelLoadError(f"The tokenizer in {folder} cannot be read: {error}") from error
        if not getattr(loaded, "is_fast", False):
            raise ModelLoadError(f"The tokenizer in {folder} has no fast form (tokenizer.json), which mainstem needs")
        config = _read_json(folder / "config.json")
        generation = _read_json(folder / "generation_config.json")
        ends = {
            *_as_ids(generation.get("eos_token_id")),
            *_as_ids(config.get("eos_token_id")),
            *_as_ids(loaded.eos_token_id),
        }
        return cls(
            loaded,
            vocab_size=int(config.get("vocab_size") or 0),
            eos_token_ids=ends,
            canonical_tools=canonical_tools,
        )

    def encode(self, text: str) -> TokenArray:
        """Ids of a text, nothing added. The text of a special token, such as `<|im_end|>`, becomes that token.

        Raises:
            InvalidRequest: when the text is not valid Unicode.
        """
        return self._encode(text, add_special_tokens=False)

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray]:
        """What `encode` makes of each text, all at once on as many threads as the tokenizer has.

        Raises:
            InvalidRequest: when one of them is not valid Unicode.
        """
        return self._encode_batch(texts, add_special_tokens=False)

    def encode_prompt(self, text: str) -> TokenArray:
        """Ids of a plain prompt, with the begin-of-text token where the model expects one.

        Raises:
            InvalidRequest: when the text is not valid Unicode.
        """
        return self._encode(text, add_special_tokens=True)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ids. Bytes that are not UTF-8 become U+FFFD; ids that no token has say nothing.

        Raises:
            InvalidRequest: when an id is negative or beyond the vocabulary.
        """
        return decode_all(self._bytes, self._checked(ids), skip_special_tokens=skip_special_tokens)

    def spell(self, ids: Iterable[int], *, shown: str | None = None) -> Spelling:
        """Text of ids as they stand, special tokens included, and where each of them stops in it.

        With `shown`, the text as somebody was shown it, special tokens that it lacks are left out.
        """
        return spell(self._bytes, ids.tolist() if isinstance(ids, np.ndarray) else ids, shown=shown)

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that a token stands for, which may be part of a character."""
        return self._bytes[token_id]

    def special_id(self, text: str) -> int | None:
        """Id of the special token that is written like this; None if there is none."""
        token_id: int | None = self._backend.token_to_id(text)
        return token_id if token_id in self.special_ids else None

    def token_text(self, token_id: int) -> str:
        """A token by itself, as text; U+FFFD where it is part of a character."""
        return self._bytes[token_id].decode("utf-8", "replace")

    def stream(
        self, *, skip_special_tokens: bool = True, continuation: bool = False, spoken: Collection[int] = ()
    ) -> DetokenizerStream:
        """A new detokenizer for one reply.

        Args:
            skip_special_tokens: leave out tokens such as end-of-turn marks.
            continuation: keep the space that a SentencePiece text begins with.
            spoken: special tokens that are not left out.
        """
        return DetokenizerStream(
            self._bytes, skip_special_tokens=skip_special_tokens, continuation=continuation, spoken=spoken
        )

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt that the model's chat template makes of messages and tools, both as in Chat Completions.

        Where the model's template leaves out tools, or there is none, and the model speaks ChatML, the built-in
        template takes its place. Text of special tokens inside a message is not escaped, as in `transformers`.

        Raises:
            InvalidRequest: when a message is malformed, or the template refuses the conversation.
        """
        conversation = Conversation(read_messages(messages), read_tools(tools))
        return self.chat.render(conversation, add_generation_prompt=add_generation_prompt)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> TokenArray:
        """Ids of `render_chat`; the template itself writes the begin-of-text token, so none is added.

        Raises:
            InvalidRequest: as `render_chat`, or when a text is not valid Unicode.
        """
        return self.encode(self.render_chat(messages, tools=tools, add_generation_prompt=add_generation_prompt))

    def _encode(self, text: str, *, add_special_tokens: bool) -> TokenArray:
        return self._encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def _encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[TokenArray]:
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InvalidRequest(
                    f"The text is not valid Unicode: half of a surrogate pair at character {error.start}"
                ) from None
        # A batch even of one: unlike `encode`, it lets other threads run meanwhile.
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]

    def _checked(self, ids: Iterable[int]) -> list[int]:
        checked = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        if checked and not 0 <= min(checked) <= max(checked) < self.vocab_size:
            wrong = next(i for i in checked if not 0 <= i < self.vocab_size)
            raise InvalidRequest(f"{wrong} is not a token id of this model; ids are 0 to {self.vocab_size - 1}")
        return checked


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error
    return content if isinstance(content, dict) else {}


def _as_ids(value: object) -> list[int]:
    if isinstance(value, list):
        return [i for i in value if isinstance(i, int)]
    return [value] if isinstance(value, int) else []
