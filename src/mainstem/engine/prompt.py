"""What callers may give as a prompt, and its tokens. It knows nothing of what is done with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from mainstem.errors import InvalidRequest
from mainstem.tree import TokenArray, as_tokens

Prompt: TypeAlias = str | Sequence[int] | TokenArray


def prompt_tokens(prompt: Prompt, encode: Callable[[str], TokenArray]) -> TokenArray:
    """int32[n] of a text, which `encode` turns into tokens, or of token ids.

    Raises:
        InvalidRequest: when it is neither.
    """
    if isinstance(prompt, str):
        return encode(prompt)
    try:
        return as_tokens(prompt)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"a prompt is a text or a flat list of token ids: {error}", param="prompt") from None
