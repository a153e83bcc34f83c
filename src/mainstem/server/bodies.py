"""Bodies of requests that were read lately, so that of a conversation which goes on only what is new is read.

Clients send their whole history again, in the same bytes. The list of a body's messages is remembered as it was parsed
and read, with the byte at which each of them ended. A later body that begins with the same bytes is cut there: its
beginning is known, the new messages are parsed by themselves, and what stands around the list is parsed as a body of
its own, with a secret word in place of the messages, which shows that the list is where it was taken to be. Whatever
does not come out that way is parsed whole, and so is whatever is wrong, so that errors are the same.

Tenants and namespaces share nothing: neither what is remembered nor the time that it saves. It knows JSON and bytes;
what messages say, the APIs' own modules know. It is used from one thread, the event loop's; bodies are parsed, with
what it has found for them, in any.
"""

from __future__ import annotations

import re
import secrets
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from pydantic_core import from_json

from mainstem.config import parse_size
from mainstem.errors import InvalidRequest
from mainstem.owned import Owned
from mainstem.server.auth import tenant_of
from mainstem.server.conversation_body import BodyBytes, ConversationBody
from mainstem.server.json_items import Items, first_item, items_after, items_from
from mainstem.server.protocol import namespace_of
from mainstem.server.validation import num_bytes, parse_body, read_bytes
from mainstem.server.workers import BYTES_PER_CHARACTER, work_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from mainstem.config import EngineConfig
    from mainstem.server.service import Service

Tenant: TypeAlias = tuple[str, ...]

# Shorter ones are parsed in less time than it takes to look for them.
SMALLEST = 4096
# For each byte of the token history so many of bodies may be kept.
SHARE = 0.2
# Bytes that are kept for each one of a body: itself, and the texts in it.
COPIES = 2
# About what Python needs for an item and what was read of it, beside its texts.
ITEM_BYTES = 1600
_SALT = re.compile(rb'"cache_salt"[ \t\n\r]*:[ \t\n\r]*"([^"\\]*)"')


BodyT = TypeVar("BodyT", bound=ConversationBody)
T = TypeVar("T")


async def read_conversation(service: Service, request: Request, kind: type[BodyT]) -> BodyT:
    """The body of a request, as `read_body` reads it.

    Raises:
        ApiError, ClientDisconnect: as `read_body`.
    """
    raw = await read_bytes(request, limit=service.body_limit)
    bodies = service.bodies
    beginning = bodies.find(raw, kind, tenant_of(request))
    new = len(raw) - (0 if beginning is None else beginning.num_known)
    return await work_for(request, new // BYTES_PER_CHARACTER, lambda: bodies.read(raw, kind, beginning))


async def read_said(request: Request, body: ConversationBody, read: Callable[[], T], *, beside: int = 0) -> T:
    """What `read` makes of the items and tools of a body; the longer it will take, the further from the event loop.

    Args:
        request: that the body came with.
        body: as `read_conversation` gave it.
        read: what is to be done.
        beside: how much there is to read that is not in the body, in characters.

    Raises:
        InvalidRequest: as `read` does.
        ClientDisconnect: when the client goes away first.
    """
    new = num_bytes(request) - body.num_known_bytes
    return await work_for(request, new // BYTES_PER_CHARACTER + beside, read)


class _Holds(NamedTuple):
    """What is on a shelf: bodies of one namespace, which is a tenant's or within it, and one kind."""

    namespace: tuple[str, ...]
    kind: type[ConversationBody]


@dataclass(slots=True, eq=False)
class _Kept:
    """A body that is remembered."""

    shelf: _Shelf
    known: BodyBytes

    @property
    def raw(self) -> bytes:
        return self.known.raw

    @property
    def size(self) -> int:
        return COPIES * len(self.raw) + ITEM_BYTES * len(self.known.ends)

    def common(self, raw: bytes) -> int:
        """How many of the first items a body has in common with this one."""
        ends = self.known.ends
        if raw.startswith(memoryview(self.raw)[: ends[-1]]):
            return len(ends)
        length = min(len(raw), ends[-1])
        differ = np.frombuffer(raw, np.uint8, length) != np.frombuffer(self.raw, np.uint8, length)
        return bisect_right(ends, int(differ.argmax()) if differ.any() else length)


class Beginning(NamedTuple):
    """How much of a body is known.

    Attributes:
        known: a body that begins with the same items.
        num_items: of these.
        salt: that both seem to have.
        num_known: of the body's bytes, about, that need not be read again.
        kept: what of the memory it is.
    """

    known: BodyBytes
    num_items: int
    salt: str | None
    num_known: int
    kept: _Kept


@dataclass(slots=True, eq=False)
class _Shelf:
    """Bodies of one kind in one namespace, in the order of their bytes."""

    tenant: Tenant
    holds: _Holds
    kept: list[_Kept] = field(default_factory=list)

    def closest(self, raw: bytes) -> tuple[_Kept, int] | None:
        """The body with the most first items in common, and their number; None if none has any."""
        at = self._place(raw)
        # In sorted order, whatever has the longest beginning in common is a neighbour.
        found = [(kept, kept.common(raw)) for kept in self.kept[max(0, at - 1) : at + 1]]
        best = max(found, key=lambda pair: pair[1], default=None)
        return best if best is not None and best[1] else None

    def put(self, kept: _Kept) -> None:
        self.kept.insert(self._place(kept.raw), kept)

    def take(self, kept: _Kept) -> None:
        at = self._place(kept.raw)
        while self.kept[at] is not kept:
            at += 1
        del self.kept[at]

    def _place(self, raw: bytes) -> int:
        return bisect_left(self.kept, raw, key=lambda kept: kept.raw)


class BodyMemory:
    """Remembers bodies, and parses others with their help.

    Args:
        max_bytes: that they may take, about; 0 remembers nothing. Where it is too little, whoever has most gives way.
        smallest: shorter bodies are not remembered.
    """

    def __init__(self, max_bytes: int, *, smallest: int = SMALLEST) -> None:
        self._max_bytes = max_bytes
        self._smallest = smallest
        self._shelves: dict[Tenant, dict[_Holds, _Shelf]] = {}
        self._kept: Owned[_Kept] = Owned()
        self._word = secrets.token_hex(16)

    @classmethod
    def for_engine(cls, config: EngineConfig) -> BodyMemory:
        """One that suits an engine's token history."""
        return cls(int(SHARE * parse_size(config.history_memory)) if config.history_entries else 0)

    @property
    def size(self) -> int:
        """Bytes that the bodies take, about."""
        return self._kept.size

    def parse(self, raw: bytes, kind: type[BodyT], tenant: Tenant) -> BodyT:
        """What `parse_body` makes of a body.

        Raises:
            ApiError: as `parse_body`.
        """
        return self.read(raw, kind, self.find(raw, kind, tenant))

    def find(self, raw: bytes, kind: type[ConversationBody], tenant: Tenant) -> Beginning | None:
        """What is known of a body; None if that is nothing."""
        shelves = self._shelves.get(tenant)
        if shelves is None or not self._remembers(raw):
            return None
        # To look for a salt costs as much as all the rest: not where none was ever used.
        uses_salts = "cache_salt" in kind.model_fields and any(holds.namespace != tenant for holds in shelves)
        salt = _salt(raw) if uses_salts else None
        try:
            shelf = shelves.get(_Holds(namespace_of(salt, tenant), kind))
        except InvalidRequest:
            return None
        found = None if shelf is None else shelf.closest(raw)
        if found is None:
            return None
        kept, count = found
        self._kept.use(kept)
        known = kept.known
        tail = known.raw[known.ends[-1] :]
        num_known = known.ends[count - 1] + (len(tail) if raw.endswith(tail) else 0)
        return Beginning(known, count, salt, num_known, kept)

    def read(self, raw: bytes, kind: type[BodyT], beginning: Beginning | None) -> BodyT:
        """What `parse_body` makes of a body, of which so much is known. It can be called in any thread.

        Raises:
            ApiError: as `parse_body`.
        """
        if not self._remembers(raw):
            return parse_body(raw, kind)
        try:
            body = None if beginning is None else self._go_on(raw, kind, beginning)
        except ValueError:  # pydantic's errors are ValueErrors too
            body = None
        if body is None:
            body = parse_body(raw, kind)
            self._learn(raw, body)
        return body

    def keep(self, body: ConversationBody, tenant: Tenant, namespace: tuple[str, ...]) -> None:
        """Remember a body whose items have been read.

        Args:
            body: as `parse` gave it.
            tenant: whose it is.
            namespace: in which it may be used, which is the tenant's or within it.
        """
        known = body._bytes
        if not known.raw or len(known.read.items) != len(known.ends):
            return
        if known.before is not None:
            # What it goes on from is in it. The last one to go takes its shelf with it.
            self._drop(known.before)
            known.before = None
        holds = _Holds(namespace, type(body))
        shelf = self._shelves.setdefault(tenant, {}).setdefault(holds, _Shelf(tenant, holds))
        kept = _Kept(shelf, known)
        shelf.put(kept)
        self._kept.add(kept, tenant, kept.size)
        while self._kept.size > self._max_bytes:
            self._drop(self._kept.first(by_size=True))

    def reset(self, tenant: Tenant | None = None) -> None:
        """Forget everything, or what one tenant has."""
        shelves = [shelf for some in self._shelves.values() for shelf in some.values()]
        for kept in [kept for shelf in shelves if tenant in (None, shelf.tenant) for kept in shelf.kept]:
            self._drop(kept)

    def check_integrity(self) -> None:
        """Verify that counts and order are right.

        Raises:
            AssertionError: when they are not.
        """
        shelves = [shelf for some in self._shelves.values() for shelf in some.values()]
        on_shelves = [kept for shelf in shelves for kept in shelf.kept]
        assert all(self._shelves.values()), "a tenant without shelves"
        assert all(shelf.kept for shelf in shelves), "an empty shelf"
        assert len(on_shelves) == len(self._kept), "shelves differ"
        assert all(kept in self._kept for kept in on_shelves), "shelves differ"
        assert self._kept.size == sum(kept.size for kept in on_shelves) <= self._max_bytes, "sizes do not add up"
        for shelf in shelves:
            assert [kept.raw for kept in shelf.kept] == sorted(kept.raw for kept in shelf.kept), "out of order"

    def _drop(self, kept: _Kept) -> None:
        if kept not in self._kept:  # another request that goes on from it was faster
            return
        self._kept.remove(kept)
        shelf = kept.shelf
        shelf.take(kept)
        if not shelf.kept:
            shelves = self._shelves[shelf.tenant]
            del shelves[shelf.holds]
            if not shelves:
                del self._shelves[shelf.tenant]

    def _remembers(self, raw: bytes) -> bool:
        """Whether a body is of a length that is remembered."""
        return self._max_bytes > 0 and len(raw) >= self._smallest

    def _go_on(self, raw: bytes, kind: type[BodyT], beginning: Beginning) -> BodyT | None:
        """The body, if it goes on from one that is known."""
        known, count, salt, num_known, kept = beginning
        items = items_after(raw, known.ends[count - 1])
        new = None if items is None else _parsed(raw, items)
        if items is None or new is None:
            return None
        ends = known.ends[:count] + items.ends
        tail = raw[ends[-1] :]
        same = tail == known.raw[known.ends[-1] :]
        rest = known.rest if same else self._rest(raw[: known.first], tail, kind)
        if rest is None or getattr(rest, "cache_salt", None) != salt:
            return None
        assert isinstance(rest, kind)
        read = known.read.first(count)
        body = rest.model_copy(update={kind.ITEMS: [*read.items, *new]})
        before = kept if count == len(known.ends) else None
        body._bytes = BodyBytes(raw, known.first, ends, read, rest, known.tools if same else None, before, num_known)
        return body

    def _learn(self, raw: bytes, body: ConversationBody) -> None:
        """Find where the items of a body stand, if they stand where they mostly do."""
        first = first_item(raw, body.ITEMS)
        items = None if first is None else items_from(raw, first)
        given = getattr(body, body.ITEMS)
        if first is None or items is None or not isinstance(given, list) or len(given) != len(items.ends):
            return
        try:
            rest = self._rest(raw[:first], raw[items.ends[-1] :], type(body))
        except ValueError:
            return
        if rest is not None:
            body._bytes = BodyBytes(raw, first, items.ends, rest=rest)

    def _rest(self, head: bytes, tail: bytes, kind: type[BodyT]) -> BodyT | None:
        """A body without its items; None if what stands between these two is not the list of items."""
        value = from_json(b'%b"%b"%b' % (head, self._word.encode(), tail), allow_inf_nan=False)
        if not isinstance(value, dict) or value.get(kind.ITEMS) != [self._word]:
            return None
        return kind.model_validate({**value, kind.ITEMS: []})


def _parsed(raw: bytes, items: Items) -> list[Any] | None:
    """The items, if there are as many as were counted."""
    if not items.ends:
        return []
    # As deep as they are in the body: how deep JSON may be has a limit.
    value = from_json(b'{"":[%b]}' % raw[items.start : items.ends[-1]], allow_inf_nan=False)
    new: list[Any] = value[""]
    return new if len(value) == 1 and len(new) == len(items.ends) and all(type(item) is dict for item in new) else None


def _salt(raw: bytes) -> str | None:
    """What a body seems to have as its salt; whether it has, is seen once it is parsed."""
    found = _SALT.search(raw)
    return None if found is None else found[1].decode("utf-8", "replace")
