"""Things of several owners in one bounded memory, where nobody can push out what is another's by having more.

When something must go, it is the least recently used of the owner who has most: an owner keeps what it has up to an
equal part of the bound, whatever the others do (max-min fairness, as `mainstem.tree.fair` has it for the KV pool). It
knows owners, sizes and recency, and nothing of what the things are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

E = TypeVar("E", bound=Hashable)


class _Owner(Generic[E]):
    __slots__ = ("entries", "name", "size")

    def __init__(self, name: Hashable) -> None:
        self.name = name
        self.entries: OrderedDict[E, int] = OrderedDict()  # the least recently used first, with their sizes
        self.size = 0


class Owned(Generic[E]):
    """Entries with their sizes and owners.

    Attributes:
        size: of all entries together.
    """

    def __init__(self) -> None:
        self.size = 0
        self._owners: dict[Hashable, _Owner[E]] = {}
        self._owner_of: dict[E, _Owner[E]] = {}

    def __len__(self) -> int:
        return len(self._owner_of)

    def __contains__(self, entry: object) -> bool:
        return entry in self._owner_of

    def add(self, entry: E, owner: Hashable, size: int) -> None:
        """Take in an entry that is not here, as the one used last."""
        found = self._owners.get(owner)
        if found is None:
            found = self._owners[owner] = _Owner(owner)
        found.entries[entry] = size
        found.size += size
        self.size += size
        self._owner_of[entry] = found

    def resize(self, entry: E, by: int) -> None:
        """An entry takes more, or less, than it did."""
        owner = self._owner_of[entry]
        owner.entries[entry] += by
        owner.size += by
        self.size += by

    def use(self, entry: E) -> None:
        """An entry is used now."""
        self._owner_of[entry].entries.move_to_end(entry)

    def remove(self, entry: E) -> None:
        """Take an entry out."""
        owner = self._owner_of.pop(entry)
        size = owner.entries.pop(entry)
        owner.size -= size
        self.size -= size
        if not owner.entries:
            del self._owners[owner.name]

    def first(self, *, by_size: bool) -> E:
        """Which entry is to go first: the least recently used of who has most, by size or by number.

        Raises:
            ValueError: when there is none.
        """
        if len(self._owners) == 1:
            (most,) = self._owners.values()
        elif by_size:
            most = max(self._owners.values(), key=lambda owner: owner.size)
        else:
            most = max(self._owners.values(), key=lambda owner: len(owner.entries))
        return next(iter(most.entries))
