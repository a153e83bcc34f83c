"""Servers with the habits of various engines, on a real port: what they take, what they refuse, what they tell."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

EXTENSIONS = ("ignore_eos", "min_tokens", "return_token_ids")


@dataclass(slots=True)
class Habits:
    """What a server does; `asked` collects the bodies that it was sent.

    It says nothing before as many requests as `gathers` have been there at once.
    """

    takes_ids: bool = True
    takes_extensions: bool = True
    streams_ids: bool = True
    tokenizes: bool = True
    tells_usage: bool = True
    context: int | None = None
    models: tuple[str, ...] = ("fake",)
    token_s: float = 0.0
    gathers: int = 0
    fails_at: int | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    running: int = 0
    most_running: int = 0


@contextmanager
def fake_server(habits: Habits) -> Iterator[str]:
    """Serve on a free port; yields the base URL, up to and including /v1."""
    config = uvicorn.Config(_app(habits), port=0, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        threading.Event().wait(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()


def _app(habits: Habits) -> Starlette:
    async def models(_: Request) -> Response:
        listed = [{"id": name, "max_model_len": habits.context} for name in habits.models]
        return JSONResponse({"data": listed})

    async def tokenize(request: Request) -> Response:
        if not habits.tokenizes:
            return Response(status_code=404)
        text = (await request.json())["prompt"]
        return JSONResponse({"tokens": [1000 + len(word) for word in text.split()]})

    async def completions(request: Request) -> Response:
        body = await request.json()
        habits.asked.append(body)
        if not habits.takes_ids and isinstance(body["prompt"], list):
            return JSONResponse({"error": {"message": "prompt must be a string"}}, status_code=400)
        if not habits.takes_extensions and any(name in body for name in EXTENSIONS):
            return JSONResponse({"detail": "unknown field"}, status_code=422)
        return StreamingResponse(
            _reply(habits, body, fails=len(habits.asked) == habits.fails_at), media_type="text/event-stream"
        )

    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
        ]
    )


async def _reply(habits: Habits, body: dict[str, Any], *, fails: bool) -> AsyncIterator[str]:
    """Token n of a reply is id 500 + n, and says `wn`."""
    habits.running += 1
    habits.most_running = max(habits.most_running, habits.running)
    try:
        while habits.most_running < habits.gathers:
            await asyncio.sleep(0.001)
        for index in range(body["max_tokens"]):
            await asyncio.sleep(habits.token_s)
            if fails:
                yield _event({"error": {"message": "out of memory"}})
                return
            choice: dict[str, Any] = {"index": 0, "text": f" w{index}", "finish_reason": None}
            if habits.streams_ids and body.get("return_token_ids"):
                choice["token_ids"] = [500 + index]
            yield _event({"choices": [choice]})
        yield _event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        if habits.tells_usage:
            prompt = body["prompt"]
            tokens = len(prompt) if isinstance(prompt, list) else len(prompt.split())
            usage = {
                "prompt_tokens": tokens,
                "completion_tokens": body["max_tokens"],
                "prompt_tokens_details": {"cached_tokens": tokens // 2},
            }
            yield _event({"choices": [], "usage": usage})
        yield "data: [DONE]\n\n"
    finally:
        habits.running -= 1


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"
