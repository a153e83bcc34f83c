"""Who uses which nodes, and which sessions are over: what of the tree can be given up, as far as that proved right.

A node that one session alone has used is its own. When a session ends, its own nodes go first; so does the branch that
it left when it came back with another history. Both are guesses about the future, and a source of hints may be wrong,
or lie. So it is counted how often what was said to be over came back, and beside it how often sessions come back that
nothing was said of. As long as the former is not clearly rarer, the hints of that source change nothing.

It knows nodes and sessions; nothing of locks, slots or time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

from mainstem.owned import Owned
from mainstem.tree.eviction import EvictionReason
from mainstem.tree.fair import FairOrder
from mainstem.tree.hints import CacheHints
from mainstem.tree.keys import NamespaceKey
from mainstem.tree.node import ChildKey, Node
from mainstem.tree.tails import LostTails, Returns, depth_of
from mainstem.tree.tenancy import is_public, tenant_key

T = TypeVar("T")
Name: TypeAlias = tuple[NamespaceKey, str]

MAX_SESSIONS = 20_000
"""Sessions that are remembered, whether they are over or not."""
MAX_SOURCES = 1_000
"""Sources of hints whose record is kept."""
MAX_TIPS = 256
"""Branches of one session that are remembered; of more, the oldest do not go with it."""
MAX_CHILDREN = 64
"""A node on which more branches hang stays when its session ends: looking at all of them would hold up others."""
MEMORY = 400.0
"""After so many more cases of a kind, one counts a third."""
TRUSTED = 0.75
"""What is said to be over must come back at most this much as often as what is not, or it is not believed."""


class Track:
    """How often something was said, and how often what was said came back after all; old cases count less and less."""

    __slots__ = ("returned", "said")

    def __init__(self, said: float, returned: float) -> None:
        self.said = said
        self.returned = returned

    def say(self) -> None:
        """Count a case."""
        self.said = self.said * (1.0 - 1.0 / MEMORY) + 1.0
        self.returned *= 1.0 - 1.0 / MEMORY

    def come_back(self) -> None:
        """Count that one of them came back."""
        self.returned = min(self.returned + 1.0, self.said)

    @property
    def return_rate(self) -> float:
        """Share of the cases that came back."""
        return self.returned / self.said


class SourceRecord:
    """What became of the sessions of one source.

    Attributes:
        open: requests that did not end their session.
        over: requests that did, and branches that a session left.
        tails: what is lost of the ends of prompts when sessions come back.
    """

    def __init__(self) -> None:
        # A new source is believed until it has been wrong a few times.
        self.open = Track(4.0, 2.0)
        self.over = {EvictionReason.ENDED: Track(4.0, 0.5), EvictionReason.SUPERSEDED: Track(4.0, 0.5)}
        self.tails = LostTails()

    def is_believed(self, reason: EvictionReason) -> bool:
        """Whether what was said to be over for this reason comes back clearly less often than what was not."""
        return self.over[reason].return_rate < TRUSTED * self.open.return_rate


class Session:
    """What is known of one conversation.

    Attributes:
        record: of its source.
        tips: its own nodes at which its requests ended and none has gone on.
        latest: its own node at which its latest request ended, or what is left above it.
        found: how many tokens the one that runs had found; None where several run, or ran at once.
        returns: what its latest ones left.
        loses: the latest return that could be seen did not use half of what the request before had brought.
        left: the tip of the branch that it left last and has not come back to; once that is evicted, the node it hung
            on and under which key.
        is_over: it was said to be over, and has not come back since.
        is_open: its latest request did not say so, and it has not come back since.
        running: how many of its requests run.
    """

    __slots__ = ("found", "is_open", "is_over", "latest", "left", "loses", "record", "returns", "running", "tips")

    def __init__(self, record: SourceRecord) -> None:
        self.record = record
        self.tips: dict[Node, None] = {}
        self.latest: Node | None = None
        self.found: int | None = None
        self.returns = Returns()
        self.loses = False
        self.left: Node | tuple[Node, ChildKey] | None = None
        self.is_over = False
        self.is_open = False
        self.running = 0

    def remembered(self) -> Iterator[Node]:
        """All nodes of its own that it knows."""
        yield from self.tips
        yield from self.returns
        if self.latest is not None:
            yield self.latest

    def forget(self, node: Node) -> None:
        """A node is not its own any more."""
        self.tips.pop(node, None)
        self.returns.evicted(node, None)
        if self.latest is node:
            self.latest = None
        if self.left is node:
            self.left = None


SEVERAL = Session(SourceRecord())
"""The user of nodes that more than one session has used, or somebody who does not say who it is."""


class Sessions:
    """All sessions of one cache.

    Args:
        order: of its nodes.
    """

    def __init__(self, order: FairOrder) -> None:
        self._order = order
        self._known: Remembered[Session] = Remembered(MAX_SESSIONS)
        self._records: Remembered[SourceRecord] = Remembered(MAX_SOURCES)
        order.on_revival = self._revived

    # -- what requests say ----------------------------------------------------------------------------------------

    def begin(self, namespace: NamespaceKey, hints: CacheHints, node: Node, next_key: ChildKey | None) -> None:
        """A request has begun: what it found was used just now, down to `node`.

        Args:
            next_key: of the child that would go on as the request does; None if the request ends there.
        """
        if hints.session is None:
            return
        session = self._session(namespace, hints)
        record = session.record
        if session.is_over:
            session.is_over = False
            record.over[EvictionReason.ENDED].come_back()
        if session.is_open:
            session.is_open = False
            record.open.come_back()
        if _came_back(session.left, node, next_key):
            session.left = None
            record.over[EvictionReason.SUPERSEDED].come_back()
        self._learn_loss(session, node, next_key)
        session.found = depth_of(node) if session.running == 0 else None
        for tip in [tip for tip in session.tips if tip.last_used == node.last_used]:
            del session.tips[tip]  # the request goes on from there
        if session.running == 0 and session.latest is not None and session.latest in session.tips:
            session.left = session.latest
            record.over[EvictionReason.SUPERSEDED].say()
            if record.is_believed(EvictionReason.SUPERSEDED):
                self._give_up(session, session.latest, EvictionReason.SUPERSEDED)
        session.running += 1

    def end(self, namespace: NamespaceKey, hints: CacheHints, node: Node | None) -> int:
        """A request has ended: what it leaves in the tree ends with `node`, used just now; None if it leaves nothing.

        Returns:
            How many tokens at the end of that will not be used even if the session comes back.
        """
        if hints.session is None:
            _mark(node, SEVERAL)
            return 0
        session = self._session(namespace, hints)
        session.running = max(session.running - 1, 0)
        _mark(node, session)
        session.latest = None
        if node is not None and node.user is session:
            session.latest = node
            session.tips[node] = None
            if len(session.tips) > MAX_TIPS:
                del session.tips[next(iter(session.tips))]
        if hints.ends_session:
            self._finish(session)
        else:
            session.is_open = True
            session.record.open.say()
        if session.latest is None or session.found is None:
            return 0
        session.returns.leave(session.latest, session.found)
        if session.loses:
            self._doubt(session.latest, session.found)
        return session.record.tails.expected

    def give_up_tail(self, nodes: Sequence[Node], key: ChildKey) -> None:
        """Give up the end of what a request has left last, its session's own, from the tip upwards.

        Args:
            nodes: of the end, the tip first.
            key: under which the last of them hangs.
        """
        assert nodes[0].user is not None
        nodes[0].user.returns.gave_up(nodes, key)
        for node in nodes:
            self._order.give_up(node, EvictionReason.REWRITTEN)

    def finish(self, namespace: NamespaceKey, name: str) -> bool:
        """A session is over, says its client after its last request; whether the session was known."""
        session = self._known.get((namespace, name))
        if session is None:
            return False
        self._finish(session)
        return True

    # -- what becomes of nodes ------------------------------------------------------------------------------------

    def evicted(self, node: Node, kept: int, _: EvictionReason) -> None:
        """A node is to be evicted: what ended with it will end above it."""
        session, parent = node.user, node.parent
        if session is None or session is SEVERAL or kept or parent is None:
            return
        is_own = parent.user is session
        if node in session.tips:
            del session.tips[node]
            if is_own and len(parent.children) == 1:
                session.tips[parent] = None
        if session.latest is node:
            session.latest = parent if is_own else None
        session.returns.evicted(node, parent if is_own else None)
        if session.left is node or (isinstance(session.left, tuple) and session.left[0] is node):
            key = next(key for key, child in parent.children.items() if child is node)
            session.left = (parent, key)

    def replaced(self, node: Node, shorter: Node) -> None:
        """A node was cut, and another one is in its place."""
        session = shorter.user = node.user
        if session is None or session is SEVERAL:
            return
        if node in session.tips:
            del session.tips[node]
            session.tips[shorter] = None
        if session.latest is node:
            session.latest = shorter
        if session.left is node:
            session.left = shorter
        session.returns.replaced(node, shorter)

    def check_integrity(self) -> None:
        """Verify that of each session only nodes are remembered as ends that are in the tree and its own.

        Raises:
            AssertionError: when there are others.
        """
        for session in self._known.values():
            for node in session.remembered():
                assert node.home is not None, "the end of a request is remembered that was evicted"
                assert node.user is session, "the end of a request is not its session's own"

    def _revived(self, node: Node) -> None:
        """A node that was given up is used again; at the end of a branch that means that the branch goes on."""
        session = node.user
        if session is None:
            return
        if session.left is node:
            session.left = None
            session.record.over[EvictionReason.SUPERSEDED].come_back()
        if session.is_over and node in session.tips:
            session.is_over = False
            session.record.over[EvictionReason.ENDED].come_back()

    @staticmethod
    def _learn_loss(session: Session, node: Node, next_key: ChildKey | None) -> None:
        """A session has come back and found what ends with `node`: see what it lost."""
        if session.running or (found := session.returns.take(node, next_key)) is None:
            return
        left, lost = found
        session.loses = not left.was_of_use(lost)
        if not session.loses:
            session.record.tails.note(lost)

    def _doubt(self, tip: Node, found: int) -> None:
        """Doubt that what a request has brought will be used: what its session alone has, after the first tokens.

        Nothing else hangs on it, so that what is doubtful never goes before what is not.
        """
        node: Node | None = tip
        length, below = depth_of(tip), 0
        while node is not None and node.user is tip.user and length > found:
            if node.locks or len(node.children) != below:
                return
            self._order.doubt(node)
            length -= len(node.key)
            node, below = node.parent, 1

    def _finish(self, session: Session) -> None:
        if session.is_over:
            return
        session.is_over = True
        session.is_open = False
        session.record.over[EvictionReason.ENDED].say()
        if session.record.is_believed(EvictionReason.ENDED):
            for tip in session.tips:
                self._give_up(session, tip, EvictionReason.ENDED)

    def _give_up(self, session: Session, tip: Node, reason: EvictionReason) -> None:
        """Give up a branch of a session from its tip upwards, as far as nothing else depends on it."""
        node: Node | None = tip
        while node is not None and node.user is session and node.locks == 0:
            # The youngest child is the last that a session gives up, so this rarely looks at more than one.
            if len(node.children) > MAX_CHILDREN or not all(
                map(self._order.is_given_up, reversed(node.children.values()))
            ):
                return
            if not self._order.is_given_up(node):
                self._order.give_up(node, reason)
            node = node.parent

    def _session(self, namespace: NamespaceKey, hints: CacheHints) -> Session:
        assert hints.session is not None
        return self._known.get_or_make(
            (namespace, hints.session), lambda: Session(self._record(namespace, hints.source))
        )

    def _record(self, namespace: NamespaceKey, source: str) -> SourceRecord:
        return self._records.get_or_make((namespace, source), SourceRecord)


class Remembered(Generic[T]):
    """Things by namespace and name, so many at most: beyond that the least recently used of who has most goes.

    Args:
        limit: how many.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._things: dict[Name, T] = {}
        self._owned: Owned[Name] = Owned()

    def __len__(self) -> int:
        return len(self._things)

    def get(self, name: Name) -> T | None:
        """The thing of this name, if it is remembered; it counts as used no later."""
        return self._things.get(name)

    def get_or_make(self, name: Name, make: Callable[[], T]) -> T:
        """The thing of this name, which is used now."""
        thing = self._things.get(name)
        if thing is not None:
            self._owned.use(name)
            return thing
        thing = self._things[name] = make()
        self._owned.add(name, tenant_key(name[0]), 1)
        if len(self._things) > self._limit:
            gone = self._owned.first(by_size=False)
            self._owned.remove(gone)
            del self._things[gone]
        return thing

    def values(self) -> Iterable[T]:
        """All of them."""
        return self._things.values()


def _mark(node: Node | None, user: Session) -> None:
    """Note who has used a path. Where that is known already, it is known of all nodes above too."""
    while node is not None and node.parent is not None and node.user is not user and node.user is not SEVERAL:
        if node.user is None and not is_public(node.space.namespace):
            node.user = user
        else:
            share(node)
        node = node.parent


def share(node: Node) -> None:
    """Note that a node is no session's own any more."""
    if node.user is not None:
        node.user.forget(node)
    node.user = SEVERAL


def _came_back(left: Node | tuple[Node, ChildKey] | None, node: Node, next_key: ChildKey | None) -> bool:
    """Whether a request that found what ends with `node` goes on with the branch that its session had left."""
    if isinstance(left, tuple):
        return left == (node, next_key)
    return left is not None and left.home is not None and left.last_used == node.last_used
