"""Conversations that later requests to `/v1/responses` may refer to, in memory and with a bound.

Messages are shared between a conversation and the one it continues, so a long chain costs little more than its last
one. Each tenant sees its own only. It knows nothing of HTTP.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class _Shelf:
    """A tenant's responses, the latest last, and how many characters they have."""

    responses: OrderedDict[str, StoredResponse] = field(default_factory=OrderedDict)
    size: int = 0


class ResponseStore:
    """The latest responses, by tenant and id. Where there are too many, the tenant that has most gives way.

    Args:
        capacity: how many are kept.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: dict[tuple[str, ...], _Shelf] = {}

    def __len__(self) -> int:
        return sum(len(shelf.responses) for shelf in self._kept.values())

    def add(self, tenant: tuple[str, ...], response_id: str, response: StoredResponse) -> None:
        """Keep one; the oldest of whoever has most make room."""
        shelf = self._kept.setdefault(tenant, _Shelf())
        shelf.responses[response_id] = response
        shelf.size += response.size
        while len(self) > self._capacity:
            self._take_oldest(max(self._kept, key=lambda owner: len(self._kept[owner].responses)))
        while sum(shelf.size for shelf in self._kept.values()) > MAX_CHARACTERS:
            self._take_oldest(max(self._kept, key=lambda owner: self._kept[owner].size))

    def get(self, tenant: tuple[str, ...], response_id: str) -> StoredResponse | None:
        """One that is still kept."""
        shelf = self._kept.get(tenant)
        return None if shelf is None else shelf.responses.get(response_id)

    def drop(self, tenant: tuple[str, ...], response_id: str) -> bool:
        """Forget one; whether it was there."""
        if self.get(tenant, response_id) is None:
            return False
        self._take(tenant, response_id)
        return True

    def _take_oldest(self, tenant: tuple[str, ...]) -> None:
        self._take(tenant, next(iter(self._kept[tenant].responses)))

    def _take(self, tenant: tuple[str, ...], response_id: str) -> None:
        shelf = self._kept[tenant]
        shelf.size -= shelf.responses.pop(response_id).size
        if not shelf.responses:
            del self._kept[tenant]
