"""Conversations that later requests to `/v1/responses` may refer to, in memory and with a bound.

Messages are shared between a conversation and the one it continues, so a long chain costs little more than its last
one. Each tenant sees its own only. It knows nothing of HTTP.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from mainstem.tokens import Message

# Characters of text; a conversation's own, without those of the one it continues.
MAX_CHARACTERS = 256 * 2**20


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response.

    Attributes:
        body: as it was sent.
        messages: the conversation up to and with its output, without instructions.
        size: characters that it keeps alive, roughly.
    """

    body: dict[str, Any]
    messages: tuple[Message, ...]
    size: int


class ResponseStore:
    """The latest responses, by tenant and id.

    Args:
        capacity: how many are kept.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: OrderedDict[tuple[tuple[str, ...], str], StoredResponse] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, tenant: tuple[str, ...], response_id: str, response: StoredResponse) -> None:
        """Keep one; the oldest make room."""
        self._kept[tenant, response_id] = response
        self._size += response.size
        while self._kept and (len(self._kept) > self._capacity or self._size > MAX_CHARACTERS):
            _, dropped = self._kept.popitem(last=False)
            self._size -= dropped.size

    def get(self, tenant: tuple[str, ...], response_id: str) -> StoredResponse | None:
        """One that is still kept."""
        return self._kept.get((tenant, response_id))

    def drop(self, tenant: tuple[str, ...], response_id: str) -> bool:
        """Forget one; whether it was there."""
        dropped = self._kept.pop((tenant, response_id), None)
        self._size -= dropped.size if dropped else 0
        return dropped is not None
