"""What time it is in each conversation: what it was when the conversation began.

Some chat templates write the date or the time into the prompt. Read anew at each turn, the clock would change the
prompt's beginning in the middle of a conversation, and nothing after it would be found in a cache. This module knows
conversations and the clock; it knows nothing of templates.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta

from mainstem.tokens.conversation import Conversation, Message

# New conversations are told the same time for as long, so that those that begin alike share their beginning.
TICK = timedelta(minutes=10)
CAPACITY = 10_000


class ConversationClock:
    """Remembers the time at which conversations began. Safe to use from several threads.

    A request without any reply in it begins a conversation. Later ones are recognised by all that came before the
    first reply, and by that reply. Two that begin alike in different ticks cannot be told apart before they have a
    reply: then the later one's time goes for both.

    Args:
        now: the clock.
        capacity: times that are kept, two a conversation; those unused for longest go first.
    """

    def __init__(self, now: Callable[[], datetime] = datetime.now, *, capacity: int = CAPACITY) -> None:
        self._now = now
        self._capacity = capacity
        self._tick = datetime.min
        self._times: OrderedDict[bytes, datetime] = OrderedDict()
        self._lock = threading.Lock()

    def time_of(self, conversation: Conversation) -> datetime:
        """When the conversation began; now, if it begins or is not known any more."""
        messages = conversation.messages
        replies = (i for i, message in enumerate(messages) if message.role == "assistant")
        first = next(replies, None)
        begins = first is None or (conversation.continues_last and first == len(messages) - 1)
        opening = hashlib.blake2b(repr(conversation.namespace).encode(), digest_size=16)
        for message in messages[:first]:
            opening.update(_spelt_out(message))
        key = opening.digest()
        with self._lock:
            if begins or first is None:
                return self._remember(key, self._current())
            opening.update(_spelt_out(messages[first]))
            own = opening.digest()
            known = self._times.get(own) or self._times.get(key) or self._current()
            return self._remember(own, known)

    def _current(self) -> datetime:
        now = self._now()
        # A clock that was set back ticks too.
        if not self._tick <= now < self._tick + TICK or now.date() != self._tick.date():
            self._tick = now
        return self._tick

    def _remember(self, key: bytes, time: datetime) -> datetime:
        self._times[key] = time
        self._times.move_to_end(key)
        if len(self._times) > self._capacity:
            self._times.popitem(last=False)
        return time


def _spelt_out(message: Message) -> bytes:
    """What makes a message this one; thoughts and ids are left out, since clients drop and rename them."""
    calls = [(call.name, call.arguments) for call in message.tool_calls]
    return repr((message.role, message.parts, calls)).encode("utf-8", "surrogatepass")
