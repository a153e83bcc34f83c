"""Requests through a scheduler and its recorder, without a model: what a client would be told, from texts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mainstem.explain import MissCause, Origin, Record, Recorder, tokens_by_cause
from mainstem.explain.diagnosis import FirstDifference, first_difference
from mainstem.params import SamplingParams
from mainstem.scheduler import Request, Scheduler
from mainstem.server.parts import parts_of
from mainstem.tokens import Conversation, Message, Tokenizer
from mainstem.tokens.conversation import Tool
from mainstem.tools import Dialect
from mainstem.tools.reading import read_reply
from mainstem.tree import CACHES, Namespace, PrefixCache, TokenArray


class Told(NamedTuple):
    """What is known of a request."""

    record: Record
    difference: FirstDifference | None
    parts: list[tuple[str, int, int]]

    @property
    def causes(self) -> dict[str, int]:
        """Uncached tokens by cause; they are all that was not cached."""
        totals = {cause.value: tokens for cause, tokens in tokens_by_cause(self.record.misses).items()}
        assert sum(totals.values()) == self.record.num_uncached
        return totals

    @property
    def part(self) -> str:
        """In which the first token that differs is."""
        assert self.difference is not None
        return next(name for name, start, stop in self.parts if start <= self.difference.token < stop)


class Talk:
    """A cache that requests go through, one after the other unless a test says otherwise.

    Args:
        tokenizer: that renders conversations; None where a test speaks in tokens.
        kind: of cache.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        *,
        capacity: int = 40_000,
        kind: str = "radix",
        page_size: int = 1,
        budget: int = 40_000,
        records: int = 100,
    ) -> None:
        self._tokenizer = tokenizer
        self.cache: PrefixCache = CACHES[kind](capacity, page_size)
        self.scheduler = Scheduler(self.cache, max_num_batched_tokens=budget, max_num_seqs=8, max_model_len=capacity)
        self.recorder = Recorder(self.cache, records)
        self.scheduler.observer = self.recorder
        self._count = 0

    def add(self, tokens: Any, *, reply: int = 1, namespace: Namespace = (), **origin: Any) -> Request:
        """Queue a request for so many tokens of reply."""
        self._count += 1
        request = Request(
            f"r{self._count}",
            np.array(tokens, np.int32),
            SamplingParams(),
            max_tokens=reply,
            namespace=namespace,
            origin=Origin(id=f"r{self._count}", **origin),
        )
        self.scheduler.add(request)
        return request

    def step(self, said: Callable[[Request], int] = lambda request: 7 + request.num_generated) -> None:
        """One step; `said` is what each request that samples says next. Those that are done leave."""
        output = self.scheduler.schedule()
        self.scheduler.commit(output)
        for request, *_ in output.sources:
            request.tokens.append(said(request))
            if request.num_generated >= request.max_tokens:
                self.scheduler.finish(request)

    def run(self, tokens: Any, reply: TokenArray | None = None, **options: Any) -> Told:
        """Have one request answered, with these tokens."""
        said = [7] if reply is None else reply.tolist()
        request = self.add(tokens, reply=len(said), **options)
        while request.num_generated < len(said):
            self.step(lambda each: said[each.num_generated] if each is request else 7)
        return self.told(request)

    def told(self, request: Request) -> Told:
        """What is known of an admitted request."""
        assert isinstance(request.record, Record)
        return Told(request.record, None, [])

    def chat(
        self,
        messages: tuple[Message, ...],
        tools: tuple[Tool, ...] = (),
        *,
        reply: str = "Done.",
        namespace: Namespace = (),
        tokens: TokenArray | None = None,
        **origin: Any,
    ) -> Told:
        """Have a conversation answered; `tokens` are its prompt's, if not those of its rendering."""
        tokenizer = self._tokenizer
        assert tokenizer is not None
        conversation = Conversation(messages, tools)
        prompt = tokenizer.encode(tokenizer.chat.render(conversation)) if tokens is None else tokens
        said = tokenizer.encode(f"{reply}<|im_end|>")
        record = self.run(prompt, said, namespace=namespace, conversation=conversation, **origin).record
        difference = None
        if record.closest is not None and any(miss.cause is MissCause.DIVERGED for miss in record.misses):
            difference = first_difference(
                prompt,
                conversation,
                record.closest,
                lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
                partial(read_reply, tokenizer, Dialect(tokenizer)),
                canonical_tools=True,
            )
        return Told(record, difference, parts_of(prompt, len(prompt), conversation, tokenizer))
