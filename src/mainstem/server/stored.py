"""Conversations that later requests to `/v1/responses` may refer to, in memory and with a bound.

Messages are shared between a conversation and the one it continues, so a long chain costs little more than its last
one. Each tenant sees its own only. It knows nothing of HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from mainstem.owned import Owned
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


_Key: TypeAlias = tuple[tuple[str, ...], str]
"""A tenant, and the id of a response."""


class ResponseStore:
    """The latest responses, by tenant and id. Where there are too many, the tenant that has most gives way.

    Args:
        capacity: how many are kept.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: dict[_Key, StoredResponse] = {}
        self._owned: Owned[_Key] = Owned()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, tenant: tuple[str, ...], response_id: str, response: StoredResponse) -> None:
        """Keep one; the oldest of whoever has most make room."""
        self._kept[tenant, response_id] = response
        self._owned.add((tenant, response_id), tenant, response.size)
        while len(self._owned) > self._capacity or self._owned.size > MAX_CHARACTERS:
            self._take(self._owned.first(by_size=len(self._owned) <= self._capacity))

    def get(self, tenant: tuple[str, ...], response_id: str) -> StoredResponse | None:
        """One that is still kept."""
        return self._kept.get((tenant, response_id))

    def drop(self, tenant: tuple[str, ...], response_id: str) -> bool:
        """Forget one; whether it was there."""
        if (tenant, response_id) not in self._kept:
            return False
        self._take((tenant, response_id))
        return True

    def _take(self, key: _Key) -> None:
        del self._kept[key]
        self._owned.remove(key)
