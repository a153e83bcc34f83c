"""Block hashes: a prefix cache that knows full blocks of tokens by a hash of all that precedes their end.

This is the scheme of vLLM's automatic prefix caching (https://docs.vllm.ai/en/latest/design/prefix_caching), kept rule
by rule as the baseline that the radix tree is measured against, behind the same interface and over the same pool:

- The key of block i is SHA-256 of the key of block i - 1, the block's tokens and, in block 0, the namespace. Only full
  blocks have one.
- A match is as many leading blocks as are found by their keys. It takes no lock and moves nothing in the order of use.
- Blocks are given keys when their tokens are scheduled, so that requests of the same step share them.
- Blocks with the same key may exist side by side; the first one is found, and none is moved to another's place.
- An unlocked block waits in one queue to be reused: at its head if it has no key, else at its tail, a request's last
  block first. It keeps its key until it is taken from the head.

That queue lies here in two parts. Blocks without a key are always before all others and are as good as one another, so
they are the allocator's free extents; those with a key, in order, are `_idle`. Which blocks have a key, and which of
them goes next, is the same as in one queue, and sequences lie in runs as long as those of the other caches.

It knows token ids, blocks and locks, and never sees a tensor.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mainstem.config import BLOCK_SIZE
from mainstem.errors import OutOfSlots
from mainstem.pages import SlotArray, disjoint_runs, merge_runs, runs_of, slots_of
from mainstem.tree.eviction import EvictionReason
from mainstem.tree.interface import (
    InsertResult,
    MatchResult,
    PeekResult,
    PrefixCache,
    PrefixHandle,
    Reuse,
    SequenceView,
)
from mainstem.tree.keys import Namespace, TokenArray, Tokens, as_tokens, namespace_key

BlockArray = npt.NDArray[np.int32]
BlockKey: TypeAlias = bytes
OnForget: TypeAlias = Callable[[BlockKey, float, EvictionReason], None]
"""Called when a block is evicted that no other one can be found in place of: its key, when it was last used by
`time.monotonic()`, and why. It must not change the cache."""

# Stands for the parent of every first block.
_NO_PARENT = sha256(b"the key before the first block").digest()


class _Chain(PrefixHandle):
    """The blocks of one prefix.

    Attributes:
        cache: whose blocks they are.
        blocks: int32 array, from the first to the last.
        lives: int64 array, how often each of them had been taken for reuse before.
        locks: how often this handle is locked.
    """

    __slots__ = ("blocks", "cache", "lives", "locks")

    def __init__(self, cache: BlockHashCache, blocks: BlockArray, lives: npt.NDArray[np.int64]) -> None:
        self.cache = cache
        self.blocks = blocks
        self.lives = lives
        self.locks = 0


class BlockHashCache(PrefixCache):
    """A prefix cache of hashed blocks.

    Args:
        capacity: slots of the pool, a multiple of `block_size`.
        block_size: tokens in a block, which is the page of this cache.

    Attributes:
        on_forget: whoever wants to know what is evicted, and why.
    """

    reuse = Reuse.SCHEDULED

    def __init__(self, capacity: int, block_size: int = BLOCK_SIZE) -> None:
        super().__init__(capacity, block_size)
        num_blocks = self.capacity // self.page_size
        # By block: whether the cache owns it, its key, its locks, and how often it was taken for reuse.
        self._is_owned = np.zeros(num_blocks, np.bool_)
        self._key_of: list[bytes | None] = [None] * num_blocks
        self._locks = np.zeros(num_blocks, np.int32)
        self._lives = np.zeros(num_blocks, np.int64)
        # By key: the block that is found, and others with the same key, the oldest first.
        self._found: dict[bytes, int] = {}
        self._duplicates: dict[bytes, list[int]] = {}
        # Unlocked blocks with a key, the one to be reused next first, and since when they have been unlocked.
        self._idle: OrderedDict[int, float] = OrderedDict()
        self.on_forget: list[OnForget] = []

    # -- the interface --------------------------------------------------------------------------------------------

    def view(self, namespace: Namespace = ()) -> SequenceView:
        return _HashedView(self, namespace)

    def match_prefix(self, tokens: Tokens, namespace: Namespace = ()) -> MatchResult:
        return self.view(namespace).match_prefix(tokens)

    def peek(self, tokens: Tokens, namespace: Namespace = ()) -> PeekResult:
        return self.view(namespace).peek(tokens)

    def insert(self, tokens: Tokens, namespace: Namespace = (), *, slots: SlotArray | None = None) -> InsertResult:
        return self.view(namespace).insert(tokens, slots=slots)

    def lock(self, handle: PrefixHandle) -> None:
        chain = self._chain_of(handle)
        if not np.array_equal(self._lives[chain.blocks], chain.lives):
            raise ValueError("this prefix has been evicted, at least in part; match it again and lock it at once")
        idle = chain.blocks[self._locks[chain.blocks] == 0]
        for block in idle.tolist():
            del self._idle[block]
        self._evictable -= len(idle) * self.page_size
        self._locks[chain.blocks] += 1
        chain.locks += 1

    def unlock(self, handle: PrefixHandle) -> None:
        chain = self._locked_chain_of(handle)
        chain.locks -= 1
        self._locks[chain.blocks] -= 1
        self._retire_unlocked(chain.blocks)

    def withdraw(self, handle: PrefixHandle, length: int) -> None:
        for block in self._locked_chain_of(handle).blocks[length // self.page_size :].tolist():
            self._forget(block)

    def evict(self, n: int) -> int:
        if n < 0:
            raise ValueError(f"cannot evict {n} tokens")
        return self._evict(n, EvictionReason.LRU)

    def reset(self) -> int:
        evicted = self._evicted
        dropped = self._evict(self._evictable, EvictionReason.RESET)
        self._evicted = evicted
        return dropped

    def keys_of(self, tokens: TokenArray, view: SequenceView) -> Sequence[BlockKey]:
        """The keys of the full blocks of a sequence; `view` is a view of it that this cache made."""
        assert isinstance(view, _HashedView)
        return view._keys_of(tokens)

    def _evict(self, n: int, reason: EvictionReason) -> int:
        wanted = min(-(-n // self.page_size), len(self._idle))
        blocks = []
        for _ in range(wanted):
            block, since = self._idle.popitem(last=False)
            blocks.append(block)
            key = self._key_of[block]
            self._forget(block)
            if self.on_forget and key is not None and key not in self._found:
                for listener in self.on_forget:
                    listener(key, since, reason)
        freed = wanted * self.page_size
        self._evictable -= freed
        self._evicted += freed
        self._disown(np.array(blocks, np.int32))
        return freed

    def free(self, slots: SlotArray) -> None:
        runs = disjoint_runs(slots)
        self._require_whole_pages(runs)
        for start, stop in runs:
            self._require_private(self._is_owned[start // self.page_size : stop // self.page_size])
        self.allocator.free_runs(runs)

    def check_integrity(self) -> None:
        self.allocator.check_integrity()
        owned = np.flatnonzero(self._is_owned).tolist()
        keyed = {block: key for block, key in enumerate(self._key_of) if key is not None}
        assert len(owned) * self.page_size == self._cached_tokens, "owned blocks are miscounted"
        assert keyed.keys() <= set(owned), "a block that the cache does not own has a key"
        runs = disjoint_runs(self._slots_of(np.array(owned, np.int32)))
        assert all(self.allocator.all_allocated(run) for run in runs), "a block of the cache is free"
        assert self.held >= 0, "more slots are cached and free than there are"
        self._check_index(keyed)
        assert (self._locks >= 0).all(), "a block is unlocked more often than it was locked"
        assert not self._locks[~self._is_owned].any(), "a block is locked that the cache does not own"
        unlocked = {block for block in owned if self._locks[block] == 0}
        assert self._idle.keys() == unlocked, "the queue does not list exactly the unlocked blocks"
        assert unlocked <= keyed.keys(), "a block without a key is neither locked nor free"
        assert len(self._idle) * self.page_size == self._evictable, "evictable tokens are miscounted"
        stats = self.stats()
        locked = (len(owned) - len(unlocked)) * self.page_size
        assert stats.free + stats.evictable + stats.protected == stats.capacity, "slots do not add up"
        assert stats.protected == stats.held + locked, "protected slots are not those locked and held"

    def _check_index(self, keyed: dict[int, bytes]) -> None:
        """Every block with a key is in the index once, under that key, and nothing else is."""
        listed = [(block, key) for key, block in self._found.items()]
        listed += [(block, key) for key, blocks in self._duplicates.items() for block in blocks]
        assert len(keyed) == self._num_nodes, "blocks with a key are miscounted"
        assert len(listed) == len(keyed), "a block is found under two keys, or under none"
        assert dict(listed) == keyed, "a block is found under another key than its own"
        assert self._duplicates.keys() <= self._found.keys(), "duplicates of a block that is not there"
        assert all(self._duplicates.values()), "an empty list of duplicates is kept"

    # -- what a view asks for, the keys of the blocks being known ---------------------------------------------------

    def _peek(self, keys: Iterable[bytes]) -> PeekResult:
        blocks = self._blocks_of(keys)
        return PeekResult(len(blocks) * self.page_size, self._unlocked_tokens(blocks))

    def _match(self, num_tokens: int, keys: Iterable[bytes]) -> MatchResult:
        blocks = self._blocks_of(keys)
        length = len(blocks) * self.page_size
        self._count_query(num_tokens, length)
        return MatchResult(length, self._slots_of(blocks), self._handle(blocks))

    def _insert_new(self, keys: Sequence[bytes]) -> InsertResult:
        """Find the leading blocks and allocate the others, as a request would that is computed at once."""
        found = self._blocks_of(keys)
        needed = (len(keys) - len(found)) * self.page_size
        available = self.allocator.num_free + self._evictable - self._unlocked_tokens(found)
        if needed > available:
            raise OutOfSlots(needed, available)
        before = self._handle(found)
        self.lock(before)
        last = int(found[-1] + 1) * self.page_size - 1 if len(found) else None
        new = slots_of(self._allocate_runs(needed, last))
        self.unlock(before)
        blocks = np.concatenate([found, new[:: self.page_size] // self.page_size])
        return self._adopt(keys, blocks, len(found), np.concatenate([self._slots_of(found), new]))

    def _insert_held(self, keys: Sequence[bytes], slots: SlotArray) -> InsertResult:
        """Take over the blocks that the caller holds, after those at the beginning that are the cache's already."""
        runs = runs_of(slots)
        self._require_whole_pages(runs)
        if not all(self.allocator.all_allocated(run) for run in merge_runs(runs)):
            raise ValueError("a slot to insert is free; take it from allocate first")
        blocks = (slots[:: self.page_size] // self.page_size).astype(np.int32)
        owned = self._is_owned[blocks]
        num_owned = len(blocks) if owned.all() else int(owned.argmin())
        self._require_private(owned[num_owned:])
        if num_owned and self._key_of[blocks[num_owned - 1]] not in (None, keys[num_owned - 1]):
            raise ValueError("a slot belongs to the cache already, for other tokens; insert only what allocate gave")
        return self._adopt(keys, blocks, num_owned, slots.astype(np.int32))

    def _adopt(self, keys: Sequence[bytes], blocks: BlockArray, num_owned: int, slots: SlotArray) -> InsertResult:
        """Own the blocks after the first `num_owned`, each under its key, and mark all as used; `slots` are theirs."""
        new = blocks[num_owned:]
        for block, key in zip(new.tolist(), keys[num_owned:], strict=True):
            self._key_of[block] = key
            if self._found.setdefault(key, block) != block:
                self._duplicates.setdefault(key, []).append(block)
        self._num_nodes += len(new)
        self._is_owned[new] = True
        added = len(new) * self.page_size
        self._cached_tokens += added
        self._inserted_tokens += added
        self._evictable -= self._unlocked_tokens(blocks[:num_owned])
        self._retire_unlocked(blocks)
        return InsertResult(len(slots), num_owned * self.page_size, slots, self._handle(blocks))

    # -- blocks ---------------------------------------------------------------------------------------------------

    def _blocks_of(self, keys: Iterable[bytes]) -> BlockArray:
        """The leading blocks that are found."""
        return np.array(list(self._find(keys)), dtype=np.int32)

    def _find(self, keys: Iterable[bytes]) -> Iterator[int]:
        get = self._found.get
        for key in keys:
            block = get(key)
            if block is None:
                return
            yield block

    def _slots_of(self, blocks: BlockArray) -> SlotArray:
        """The slots of blocks, one after the other."""
        slots: SlotArray = np.add.outer(blocks * self.page_size, np.arange(self.page_size, dtype=np.int32))
        return slots.reshape(-1)

    def _handle(self, blocks: BlockArray) -> _Chain:
        return _Chain(self, blocks, self._lives[blocks])

    def _chain_of(self, handle: PrefixHandle) -> _Chain:
        if isinstance(handle, _Chain) and handle.cache is self:
            return handle
        raise ValueError("this handle is not of this cache")

    def _locked_chain_of(self, handle: PrefixHandle) -> _Chain:
        chain = self._chain_of(handle)
        if chain.locks == 0:
            raise ValueError("this prefix is not locked: it was unlocked more often than it was locked")
        return chain

    def _unlocked_tokens(self, blocks: BlockArray) -> int:
        return int(np.count_nonzero(self._locks[blocks] == 0)) * self.page_size

    def _retire_unlocked(self, blocks: BlockArray) -> None:
        """Queue those of some blocks that no lock protects, last first: at the tail if they have a key.

        Those without are to be reused first, which is to say that they are free.
        """
        last_first = blocks[::-1]
        without_key = []
        retired = last_first[self._locks[last_first] == 0].tolist()
        now = time.monotonic()
        for block in retired:
            if self._key_of[block] is None:
                without_key.append(block)
            else:
                self._idle[block] = now
                self._idle.move_to_end(block)
        self._evictable += (len(retired) - len(without_key)) * self.page_size
        self._disown(np.array(without_key, np.int32))

    def _disown(self, blocks: BlockArray) -> None:
        """Give blocks back to the allocator."""
        if len(blocks) == 0:
            return
        self._is_owned[blocks] = False
        self._lives[blocks] += 1
        self._cached_tokens -= len(blocks) * self.page_size
        self.allocator.free_runs(disjoint_runs(self._slots_of(blocks)))

    def _forget(self, block: int) -> None:
        """Take a block's key away."""
        key = self._key_of[block]
        if key is None:
            return
        self._key_of[block] = None
        self._num_nodes -= 1
        duplicates = self._duplicates.get(key)
        if duplicates is None:
            del self._found[key]
            return
        if self._found[key] == block:
            self._found[key] = duplicates.pop(0)
        else:
            duplicates.remove(block)
        if not duplicates:
            del self._duplicates[key]

    def _require_private(self, owned: npt.NDArray[np.bool_]) -> None:
        if owned.any():
            raise ValueError("a slot belongs to the cache already; insert or free only those that allocate gave")


class _HashedView(SequenceView):
    """Keeps the keys of one sequence's blocks, so that each block is hashed once."""

    def __init__(self, cache: BlockHashCache, namespace: Namespace) -> None:
        super().__init__(cache, namespace)
        namespace_key(namespace)
        self._blocks = cache
        # What its type's own notation tells apart is apart: 1, "1", True, 1.0, ("bc", "a"), ("c", "ab").
        self._extra = ascii(("namespace", *namespace)).encode() if namespace else b""
        self._keys: list[bytes] = []

    def match_prefix(self, tokens: Tokens) -> MatchResult:
        tokens = as_tokens(tokens)
        return self._blocks._match(len(tokens), self._keys_of(tokens))

    def peek(self, tokens: Tokens) -> PeekResult:
        return self._blocks._peek(self._keys_of(as_tokens(tokens)))

    def insert(self, tokens: Tokens, *, slots: SlotArray | None = None) -> InsertResult:
        tokens = as_tokens(tokens)
        if slots is not None and np.shape(slots) != tokens.shape:
            raise ValueError(f"slots must have shape {tokens.shape}, one slot a token, but have {np.shape(slots)}")
        keys = self._keys_of(tokens)
        if slots is None:
            return self._blocks._insert_new(keys)
        return self._blocks._insert_held(keys, np.asarray(slots)[: len(keys) * self._blocks.page_size])

    def _keys_of(self, tokens: TokenArray) -> list[bytes]:
        """The keys of the full blocks of `tokens`, of which only those not seen before are hashed."""
        size = self._blocks.page_size
        keys = self._keys
        known, wanted = len(keys), len(tokens) // size
        if known < wanted:
            key = keys[-1] if keys else _NO_PARENT
            text = tokens[known * size : wanted * size].tobytes()
            step = size * tokens.itemsize
            for start in range(0, len(text), step):
                extra = b"" if keys else self._extra
                key = sha256(key + text[start : start + step] + extra).digest()
                keys.append(key)
        return keys[:wanted]
