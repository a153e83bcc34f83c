"""Why a token of a prompt was computed: the causes, and how they are called. It knows nothing of how one is found."""

from __future__ import annotations

from enum import StrEnum

from mainstem.tree import EvictionReason


class MissCause(StrEnum):
    """Why tokens were not cached. Every uncached token has exactly one."""

    FIRST_SEEN = "first_seen"
    """Nobody computed them before, behind this beginning or another, as far as is remembered."""
    DIVERGED = "diverged"
    """An earlier request had them too, but behind another beginning: the prompt changed before them."""
    EVICTED = "evicted"
    """They were cached and made room for others."""
    EXPIRED = "expired"
    """They were cached and nobody used them for longer than the time to live."""
    RESET = "reset"
    """They were cached and somebody asked to forget everything."""
    OTHER_NAMESPACE = "other_namespace"
    """Its own namespace sees them for the first time, and another has them cached, which only an operator is told."""
    ROUNDING = "rounding"
    """They are known and computed all the same: the last token of a prompt always is, since the reply begins with what
    the model says after it; and of pages that hold several tokens only whole ones are reused."""
    IN_FLIGHT = "in_flight"
    """Another request was computing them, or held them for itself until its end."""
    NEVER_CACHED = "never_cached"
    """There is no prefix cache."""

    @property
    def label(self) -> str:
        """For people."""
        return self.value.replace("_", " ")

    @property
    def fix(self) -> str:
        """What to do about it, in one clause; empty where there is nothing to do, or it depends on what changed."""
        return _FIXES.get(self, "")


EVICTED_FIXES = {
    EvictionReason.QUOTA: "raise --tenant-quota, which gives one tenant no more of the pool than that, or run fewer "
    "conversations at once",
    EvictionReason.ENDED: "do not say that a session is over (cache_hints.end, x-session-end, /cache/end-session) "
    "while it may go on",
    EvictionReason.SUPERSEDED: "do not go back to a history that the session has left, or give each of its branches a "
    "session of its own (cache_hints.session_id)",
    EvictionReason.REWRITTEN: "end prompts as the next ones go on, each time: the ends of earlier ones had come back "
    "otherwise",
}
"""What to do about tokens that were evicted, where memory alone was not the reason."""
_FIXES = {
    MissCause.EVICTED: "give the pool more memory (--kv-memory), or run fewer conversations at once",
    MissCause.EXPIRED: "raise --cache-ttl above the time that people take to answer",
    MissCause.OTHER_NAMESPACE: "use one key and no cache_salt, or declare the prefix with --shared-prefix",
    MissCause.IN_FLIGHT: "send the first request alone, and the others when its reply begins",
    MissCause.NEVER_CACHED: "serve with --prefix-cache radix",
}
