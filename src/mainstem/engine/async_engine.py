"""The engine for asyncio: tasks ask, and read their replies' outputs as they come.

It knows event loops; the engine itself runs in a thread that it never touches directly. It knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor

from mainstem.config import EngineConfig
from mainstem.engine.history import new_history
from mainstem.engine.outputs import EngineStats, RequestOutput
from mainstem.engine.thread import EngineThread
from mainstem.errors import EngineStopped, MainstemError
from mainstem.explain import Origin, Record
from mainstem.model import Progress, no_progress
from mainstem.params import SamplingParams
from mainstem.scheduler import TenantLoad
from mainstem.tree import NO_HINTS, CacheHints, Namespace, TokenArray

log = logging.getLogger(__name__)
News = RequestOutput | MainstemError


class _Mailbox:
    """One caller's outputs on their way from the engine's thread to an event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[News] = asyncio.Queue()


class AsyncEngine:
    """An engine that many tasks share, from its making to `shutdown`.

    Attributes:
        config: the settings it was made from.
        model_name: short name of the model.
        budget: where its memory goes.
        compute: what computes its steps, fit to show.
        tokenizer: of the model; safe to use from any thread.
        history: exact token ids of chats; so is this.
        max_model_len: longest prompt plus reply, in tokens.
    """

    def __init__(self, config: EngineConfig, progress: Progress) -> None:
        self.config = config
        self._outbox: list[tuple[_Mailbox, News]] = []
        self._accepting = True
        self._live = 0  # replies that callers still wait for
        # Threads of their own: whoever sends slow grammars delays grammars only.
        self._compilers = ThreadPoolExecutor(2, thread_name_prefix="mainstem-grammar")
        self._engine = EngineThread(config, progress, after_step=self._post)
        self.model_name = self._engine.model_name
        self.budget = self._engine.budget
        self.compute = self._engine.compute
        self.tokenizer = self._engine.core.tokenizer
        self.history = new_history(config, self.tokenizer)
        self.max_model_len = self._engine.core.max_model_len

    @classmethod
    def load(cls, config: EngineConfig, *, progress: Progress = no_progress) -> AsyncEngine:
        """Load the model and make the engine; see `build_engine` for what it raises."""
        return cls(config, progress)

    @property
    def accepting(self) -> bool:
        """Whether new requests are taken: not once the engine shuts down, or has died."""
        return self._accepting and self._engine.alive

    @property
    def died(self) -> bool:
        """Whether an error has ended the engine, so that nothing is computed any more."""
        return self._engine.died

    async def shutdown(self, drain_s: float) -> None:
        """Take no new request, let running ones go on for `drain_s` seconds, abort the rest, end the thread."""
        self._accepting = False
        deadline = time.monotonic() + drain_s
        while self._live and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        self._compilers.shutdown(wait=False, cancel_futures=True)
        self._engine.stop()
        await asyncio.to_thread(self._engine.join)

    async def generate(
        self,
        prompt: TokenArray,
        params: SamplingParams,
        *,
        namespace: Namespace = (),
        origin: Origin | None = None,
        hints: CacheHints = NO_HINTS,
        prewarm: bool = False,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the outputs of all `params.n` replies, interleaved, until each has ended.

        Closing the generator aborts what is left within a step; what was computed stays cached.

        Args:
            prompt: int32[n].
            params: how to continue it.
            namespace: which part of the prefix cache it may use.
            origin: where the prompt came from, for its record.
            hints: what is said about the future of what it computes.
            prewarm: compute the prompt and generate nothing; there is one output, without text.

        Raises:
            InvalidRequest, PromptTooLong: before the first output.
            EngineStopped: when the engine no longer takes requests.
            EngineFailed: when computing failed.
        """
        core = self._engine.core
        core.check(prompt, params, namespace)
        # A large grammar takes longer to compile than other requests may wait.
        constraint = None
        if params.grammar is not None:
            constraint = await asyncio.get_running_loop().run_in_executor(self._compilers, core.constrain, params)
        if not self.accepting and not self.died:  # one that died says so itself
            raise EngineStopped("the engine is shutting down and takes no new requests")
        box = _Mailbox()
        arrival = time.perf_counter()
        ids: list[str] = []

        def deliver(news: News) -> None:
            self._outbox.append((box, news))

        def submit() -> None:
            try:
                if prewarm:
                    ids.extend(
                        core.submit_scoring(
                            prompt,
                            prompt[:0],
                            deliver,
                            namespace=namespace,
                            arrival=arrival,
                            origin=origin,
                            hints=hints,
                        )
                    )
                    return
                ids.extend(
                    core.submit(
                        prompt,
                        params,
                        deliver,
                        namespace=namespace,
                        arrival=arrival,
                        constraint=constraint,
                        origin=origin,
                        hints=hints,
                    )
                )
            except MainstemError as error:
                deliver(error)

        left = params.n
        self._live += params.n
        try:
            self._engine.send(submit)
            while left:
                news = await box.queue.get()
                if isinstance(news, MainstemError):
                    raise news
                if news.finish_reason is not None:
                    left -= 1
                if prewarm and news.finish_reason == "length":
                    news = news._replace(finish_reason="stop")
                yield news
        finally:
            self._live -= params.n
            if left:
                self._engine.send(lambda: core.abort(ids))

    async def reset_cache(self, tenant: Namespace | None = None) -> int:
        """Forget every cached token that no running request uses, or only those of a tenant; returns how many."""
        return await asyncio.wrap_future(self._engine.ask(lambda: self._engine.core.reset_cache(tenant)))

    async def declare_public(self, tokens: TokenArray, namespace: Namespace) -> None:
        """Let all tenants share a prefix from now on: see `PrefixCache.declare_public`."""
        cache = self._engine.core.cache
        await asyncio.wrap_future(self._engine.ask(lambda: cache.declare_public(tokens, namespace)))

    async def precompute(self, tokens: TokenArray, namespace: Namespace) -> None:
        """Have these tokens cached before anybody asks; that is in no count and no record, but takes its time.

        Raises:
            InvalidRequest, PromptTooLong: when they cannot be a prompt.
            EngineFailed: when computing failed.
        """
        core = self._engine.core
        computed: Future[None] = Future()
        computed.set_running_or_notify_cancel()  # whoever stops waiting stops nothing

        def deliver(news: News) -> None:
            if isinstance(news, MainstemError):
                computed.set_exception(news)
            elif news.finish_reason is not None:
                computed.set_result(None)

        def submit() -> None:
            core.submit_scoring(tokens, tokens[:0], deliver, namespace=namespace, unrecorded=True)

        await asyncio.wrap_future(self._engine.ask(submit))
        await asyncio.wrap_future(computed)
        await asyncio.wrap_future(self._engine.ask(lambda: None))  # once its step has ended, and is in the counts

    def tokens_by_tenant(self) -> dict[Namespace, int]:
        """How many cached tokens each tenant holds, at some moment."""
        return self._engine.core.cache.tokens_by_tenant()

    def load_by_tenant(self) -> dict[Namespace, TenantLoad]:
        """How many requests of each tenant wait and run, at some moment."""
        return self._engine.core.scheduler.waiting.load()

    async def end_session(self, session: str, namespace: Namespace = ()) -> bool:
        """A session will not come back; whether it is known. What it alone has used goes first when room is needed."""
        return await asyncio.wrap_future(self._engine.ask(lambda: self._engine.core.end_session(session, namespace)))

    async def check_integrity(self) -> None:
        """Verify every invariant between two steps.

        Raises:
            AssertionError: naming the broken one.
        """
        await asyncio.wrap_future(self._engine.ask(self._engine.core.check_integrity))

    def records_of(self, request_id: str) -> list[Record]:
        """What is remembered of a request, one record a reply, oldest first; none if nothing is."""
        recorder = self._engine.core.recorder
        return [] if recorder is None else recorder.of(request_id)

    async def latest_record(self, accept: Callable[[Record], bool]) -> Record | None:
        """The youngest record that is accepted."""
        recorder = self._engine.core.recorder
        if recorder is None:
            return None
        return await asyncio.wrap_future(self._engine.ask(lambda: recorder.latest(accept)))

    async def tokens_of(self, record: Record) -> TokenArray:
        """All tokens of a request, with those of its reply if it has ended; none if it is not remembered any more."""
        recorder = self._engine.core.recorder
        assert recorder is not None
        return await asyncio.wrap_future(self._engine.ask(lambda: recorder.tokens_of(record)))

    def stats(self) -> EngineStats:
        """The engine's counts after its latest step."""
        return self._engine.stats()

    def _post(self) -> None:
        """Hand the step's outputs to their event loops, one call a loop. Runs in the engine's thread."""
        outbox, self._outbox = self._outbox, []
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Mailbox, News]]] = {}
        for box, news in outbox:
            by_loop.setdefault(box.loop, []).append((box, news))
        for loop, letters in by_loop.items():
            try:
                loop.call_soon_threadsafe(_put_all, letters)
            except RuntimeError:  # the loop is closed: nobody reads any more
                log.debug("outputs of %d replies had no reader", len(letters))


def _put_all(letters: list[tuple[_Mailbox, News]]) -> None:
    for box, news in letters:
        box.queue.put_nowait(news)
