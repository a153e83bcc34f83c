"""What a cache is asked with: token sequences as int32 arrays, namespaces as typed keys.

It knows how callers write these down, and nothing of the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

TokenArray: TypeAlias = npt.NDArray[np.int32]
Tokens: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]
Namespace: TypeAlias = tuple[str | int | float | bytes | None, ...]
NamespaceKey: TypeAlias = tuple[tuple[type, object], ...]

MAX_TOKEN = 2**31 - 1
_NAMESPACE_TYPES = frozenset({str, int, float, bool, bytes, type(None)})


def as_tokens(tokens: Tokens) -> TokenArray:
    """Token ids as an int32 array; the very same array when it is one already.

    Raises:
        TypeError: when they are not a one-dimensional sequence of integers.
        ValueError: when one is negative or above 2**31 - 1.
    """
    is_int32 = isinstance(tokens, np.ndarray) and tokens.dtype == np.int32
    array = cast(TokenArray, tokens) if is_int32 else _convert(tokens)
    if array.ndim != 1:
        raise TypeError(f"tokens must be one-dimensional, but they have {array.ndim} dimensions")
    if len(array) and array.min() < 0:
        raise ValueError(f"token ids must not be negative, got {array.min()}")
    return array


def namespace_key(namespace: Namespace) -> NamespaceKey:
    """A dictionary key that keeps 1, "1", True and 1.0 apart, which Python's own equality does not.

    Raises:
        TypeError: when it is not a tuple of str, int, float, bool, bytes and None.
    """
    if not isinstance(namespace, tuple):
        raise TypeError(f"a namespace must be a tuple, got {type(namespace).__name__}; write for example ('tenant',)")
    for part in namespace:
        if type(part) not in _NAMESPACE_TYPES:
            raise TypeError(f"a namespace holds str, int, float, bool, bytes or None, got {type(part).__name__}")
    return tuple((type(part), part) for part in namespace)


def common_length(a: TokenArray, b: TokenArray) -> int:
    """How many leading tokens two arrays share."""
    length = min(len(a), len(b))
    if length == 0:
        return 0
    differs = (a if len(a) == length else a[:length]) != (b if len(b) == length else b[:length])
    at = int(differs.argmax())
    return at if differs[at] else length


def _convert(tokens: Tokens) -> TokenArray:
    try:
        array = np.asarray(tokens)
    except OverflowError:
        raise ValueError(f"token ids must be at most {MAX_TOKEN}") from None
    except ValueError:
        raise TypeError("tokens must be a one-dimensional sequence of integers") from None
    if array.size == 0:
        return np.empty(array.shape, dtype=np.int32)
    if array.dtype == object and all(isinstance(token, int) for token in array.flat):
        raise ValueError(f"token ids must be between 0 and {MAX_TOKEN}")
    if array.dtype.kind not in "iu":
        raise TypeError(f"tokens must be integers, got {array.dtype}")
    if array.max() > MAX_TOKEN:
        raise ValueError(f"token ids must be at most {MAX_TOKEN}, got {array.max()}")
    if array.min() < 0:
        raise ValueError(f"token ids must not be negative, got {array.min()}")
    return array.astype(np.int32)
