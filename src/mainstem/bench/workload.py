"""A workload: the calls that agents make of a model, and which of them wait for which.

It is made of token ids and knows no model, cache or clock, so the same workload runs on an engine, on a cache alone, on
a virtual machine or against another server.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mainstem.tree import TokenArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to a model.

    Attributes:
        session: the conversation or search it belongs to; sessions are numbered from 0.
        turn: which turn (or depth) of its session it is, from 1.
        after: index of the call whose reply must be complete before this one is sent; None for the first of a session.
        extends: whether its prompt begins with the prompt and the reply of `after`. Otherwise `appended` is all of it.
        appended: int32[n], the tokens that this call adds.
        reply_tokens: how long its reply is, exactly; end-of-turn tokens do not end it.
        reply: int32[reply_tokens], a recorded reply that is put in place of what the model would say; None to generate.
        wait: seconds between the end of `after` (or the start of the run) and the sending of this call.
    """

    session: int
    turn: int
    after: int | None
    extends: bool
    appended: TokenArray
    reply_tokens: int
    reply: TokenArray | None = None
    wait: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Calls in an order in which every one comes after those it waits for.

    Attributes:
        name: which workload it is, as on the command line.
        settings: what it was made from, the seed included; enough to make it again.
        calls: all calls; `Call.after` is an index into them.
        vocab_size: every token id is below this.
    """

    name: str
    settings: dict[str, object]
    calls: tuple[Call, ...]
    vocab_size: int
    prompt_lengths: tuple[int, ...] = field(init=False)
    """Tokens of each call's prompt, what it extends included."""

    def __post_init__(self) -> None:
        lengths: list[int] = []
        for index, call in enumerate(self.calls):
            if call.after is not None and not 0 <= call.after < index:
                raise ValueError(f"call {index} waits for call {call.after}, which does not come before it")
            if call.extends and call.after is None:
                raise ValueError(f"call {index} extends nothing")
            before = 0
            if call.extends and call.after is not None:
                before = lengths[call.after] + self.calls[call.after].reply_tokens
            lengths.append(before + len(call.appended))
        object.__setattr__(self, "prompt_lengths", tuple(lengths))

    @property
    def num_sessions(self) -> int:
        """How many sessions there are."""
        return 1 + max((call.session for call in self.calls), default=-1)
