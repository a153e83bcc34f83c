"""Token ids to text, all at once or one by one.

Every tokenizer served here is seen the same way: a token *is* a string of bytes, and text is the UTF-8 reading of the
bytes one after another. Byte-level BPE spells bytes with printable letters, SentencePiece-like vocabularies spell a
space as "▁" and single bytes as `<0xNN>`; both are translated once per token. Joining bytes is exact and linear, where
decoding a window of ids again and again is neither. Bytes that are not UTF-8 become U+FFFD, as many as the Unicode
standard recommends (one per maximal subpart).

It knows nothing of chat templates or of where the ids come from.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mainstem.errors import ModelLoadError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as BackendTokenizer

SPACE_MARK = "▁"


class TokenBytes:
    """What each token of a vocabulary says, in bytes.

    Args:
        backend: the loaded `tokenizers.Tokenizer`; its decoder tells how tokens spell their bytes.

    Raises:
        ModelLoadError: when the decoder is of a kind whose tokens cannot be read one by one.
    """

    def __init__(self, backend: BackendTokenizer) -> None:
        self._backend = backend
        steps = _decoder_steps(backend)
        self._byte_level = [step["type"] for step in steps] == ["ByteLevel"]
        self._replacements: list[tuple[str, str]] = []
        self._byte_fallback = False
        self.strips_leading_space = False
        if not self._byte_level:
            self._read_steps(steps)
        self._known: dict[int, bytes] = {}
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)

    def _read_steps(self, steps: list[dict[str, Any]]) -> None:
        fused = False
        for step in steps:
            match step:
                case {"type": "Replace", "pattern": {"String": old}, "content": new} if not fused or len(old) == 1:
                    self._replacements.append((old, new))
                case {"type": "Metaspace", "replacement": mark}:
                    self._replacements.append((mark, " "))
                    self.strips_leading_space |= step.get("prepend_scheme", "always") != "never"
                case {"type": "ByteFallback"}:
                    self._byte_fallback = True
                case {"type": "Fuse"}:
                    fused = True
                case {"type": "Strip", "content": " ", "start": start, "stop": 0} if fused and start <= 1:
                    self.strips_leading_space |= start == 1
                case _:
                    raise _unreadable(str(step.get("type")))

    def __getitem__(self, token_id: int) -> bytes:
        """Bytes of one token; empty for an id that the vocabulary does not have."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._spell_out(self._backend.id_to_token(token_id))
        return known

    def _spell_out(self, token: str | None) -> bytes:
        if token is None:
            return b""
        if self._byte_level:
            return _byte_level_bytes(token)
        if self._byte_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                return bytes([int(token[3:5], 16)])
            except ValueError:
                pass
        for old, new in self._replacements:
            token = token.replace(old, new)
        return token.encode()


class DetokenizerStream:
    """Text of tokens that arrive one by one. `push` gives whole characters only; `flush` gives what is left.

    All that `push` returned, and then `flush`, make `Tokenizer.decode` of all ids (with `continuation=False`).

    Args:
        token_bytes: of the vocabulary.
        skip_special_tokens: leave out tokens such as end-of-turn marks.
        continuation: the ids go on from earlier text, so that a space they begin with stays.
        spoken: special tokens that are not left out.
    """

    def __init__(
        self,
        token_bytes: TokenBytes,
        *,
        skip_special_tokens: bool = True,
        continuation: bool = False,
        spoken: Collection[int] = (),
    ) -> None:
        self._token_bytes = token_bytes
        skipped: frozenset[int] = token_bytes.special_ids if skip_special_tokens else frozenset()
        self._skipped = skipped.difference(spoken)
        self._strip = token_bytes.strips_leading_space and not continuation
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Text that the token completes; empty while a character is still in pieces."""
        if token_id in self._skipped:
            return ""
        return self._strip_start(self._utf8.decode(self._token_bytes[token_id]))

    def flush(self) -> str:
        """What was held back: U+FFFD if the last character is incomplete, else nothing."""
        return self._strip_start(self._utf8.decode(b"", final=True))

    def _strip_start(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


def decode_all(token_bytes: TokenBytes, ids: Iterable[int], *, skip_special_tokens: bool) -> str:
    """Text of all ids at once."""
    skipped: frozenset[int] = token_bytes.special_ids if skip_special_tokens else frozenset()
    text = b"".join([token_bytes[i] for i in ids if i not in skipped]).decode("utf-8", "replace")
    return text.removeprefix(" ") if token_bytes.strips_leading_space else text


class Spelling(NamedTuple):
    """What tokens spell, marks included, and where each of them stops.

    Attributes:
        text: bytes that are not UTF-8 are U+FFFD in it.
        ends: int32[n], how many characters the tokens up to and with each make; -1 where it stops within a character.
    """

    text: str
    ends: NDArray[np.int32]


def spell(token_bytes: TokenBytes, ids: Iterable[int], *, shown: str | None = None) -> Spelling:
    """The text of all ids as they stand, in any place of a text.

    Args:
        token_bytes: of the vocabulary.
        ids: of the tokens.
        shown: the text as somebody was shown it; marks that it lacks are left out.
    """
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    texts: list[str] = []
    ends: list[int] = []
    size = 0
    for token_id in ids:
        state = utf8.getstate()
        text = utf8.decode(token_bytes[token_id])
        if shown is not None and token_id in token_bytes.special_ids and not shown.startswith(text, size):
            utf8.setstate(state)
            text = ""
        size += len(text)
        texts.append(text)
        ends.append(-1 if utf8.getstate()[0] else size)
    held = utf8.decode(b"", final=True)
    if held:
        # What comes next cannot complete the character, so this is an end as well.
        texts.append(held)
        ends[-1] = size + len(held)
    return Spelling("".join(texts), np.array(ends, np.int32))


def _decoder_steps(backend: BackendTokenizer) -> list[dict[str, Any]]:
    if backend.decoder is None:
        raise _unreadable("none")
    # A decoder's settings can be read only through its serialised form, which pickling gives.
    decoder: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return steps


def _unreadable(kind: str) -> ModelLoadError:
    return ModelLoadError(
        f"The model's tokenizer has a decoder of kind '{kind}', whose tokens cannot be turned into text one by one. "
        "Byte-level and SentencePiece-like tokenizers are served."
    )


def _byte_level_alphabet() -> dict[int, int]:
    """The letters with which byte-level BPE spells bytes (GPT-2's `bytes_to_unicode`), as code point → byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {256 + i: byte for i, byte in enumerate(others)}


_BYTE_OF_LETTER = _byte_level_alphabet()


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF_LETTER[ord(letter)] for letter in token])
    except KeyError:
        # An added token is written as plain text; the tokenizer's own decoder treats it the same way.
        return token.encode()
