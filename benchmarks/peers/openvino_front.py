"""OpenVINO GenAI behind the two routes that `mainstem bench any` asks: GET /v1/models and POST /v1/completions.

    python benchmarks/peers/openvino_front.py --model DIR --port 8003

OpenVINO GenAI is a library. This serves its continuous batching pipeline with prefix caching on, in float32 on the CPU,
and adds as little as it can: one thread steps the pipeline, and hands each token to the connection that waits for it.
Its own environment needs openvino-genai, starlette, uvicorn and tokenizers; DIR is a model that optimum-intel exported.
The pipeline does not say how much of a prompt was cached, so neither does this.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openvino
import openvino_genai
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tokenizers import Tokenizer

PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


class Asked(NamedTuple):
    """A completion that was asked for; its tokens go to `tokens`, and None or an error message after the last."""

    ids: list[int]
    max_tokens: int
    tokens: asyncio.Queue[list[int] | str | None]
    loop: asyncio.AbstractEventLoop
    abandoned: threading.Event

    def tell(self, news: list[int] | str | None) -> None:
        """Hand something to the connection; from any thread."""
        self.loop.call_soon_threadsafe(self.tokens.put_nowait, news)


class Pipeline(threading.Thread):
    """The pipeline and the thread that steps it."""

    def __init__(self, folder: Path, *, cache_gib: int, batched_tokens: int) -> None:
        super().__init__(daemon=True)
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.cache_size = cache_gib
        scheduler.max_num_batched_tokens = batched_tokens
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", PROPERTIES, {})
        self.asked: queue.Queue[Asked] = queue.Queue()
        self._running: dict[Any, Asked] = {}
        self._number = 0

    def run(self) -> None:
        while True:
            if not self._running:
                self._add(self.asked.get())
            while not self.asked.empty():
                self._add(self.asked.get())
            try:
                self._pipeline.step()
            except RuntimeError as error:
                for asked in self._running.values():
                    asked.tell(str(error))
                self._running.clear()
                continue
            for handle in list(self._running):
                self._read(handle)

    def _add(self, asked: Asked) -> None:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = asked.max_tokens
        config.ignore_eos = True
        config.do_sample = False
        self._number += 1
        prompt = openvino.Tensor(np.array([asked.ids], np.int64))
        try:
            self._running[self._pipeline.add_request(self._number, prompt, config)] = asked
        except RuntimeError as error:
            asked.tell(str(error))

    def _read(self, handle: Any) -> None:
        asked = self._running[handle]
        if asked.abandoned.is_set():
            handle.cancel()
        while handle.can_read():
            for output in handle.read().values():
                asked.tell(list(output.generated_ids))
        status = handle.get_status()
        if status != openvino_genai.GenerationStatus.RUNNING or asked.abandoned.is_set():
            del self._running[handle]
            asked.tell(None if status == openvino_genai.GenerationStatus.FINISHED else f"ended as {status}")


class Front:
    """The routes."""

    def __init__(self, pipeline: Pipeline, tokenizer: Tokenizer, name: str, context: int) -> None:
        self._pipeline = pipeline
        self._tokenizer = tokenizer
        self._name = name
        self._context = context

    async def models(self, _: Request) -> Response:
        """The one model."""
        return JSONResponse({"data": [{"id": self._name, "object": "model", "max_model_len": self._context}]})

    async def completions(self, request: Request) -> Response:
        """One streamed greedy reply."""
        body = await request.json()
        prompt = body["prompt"]
        ids = prompt if isinstance(prompt, list) else self._tokenizer.encode(prompt).ids
        if not body.get("stream"):
            return JSONResponse({"error": {"message": "only streams are served"}}, status_code=400)
        if len(ids) + body["max_tokens"] > self._context:
            return JSONResponse({"error": {"message": f"longer than {self._context} tokens"}}, status_code=400)
        asked = Asked(ids, body["max_tokens"], asyncio.Queue(), asyncio.get_running_loop(), threading.Event())
        self._pipeline.asked.put(asked)
        return StreamingResponse(self._stream(asked), media_type="text/event-stream")

    async def _stream(self, asked: Asked) -> AsyncIterator[str]:
        reply: list[int] = []
        said = ""
        try:
            while (news := await asked.tokens.get()) is not None:
                if isinstance(news, str):
                    yield _event({"error": {"message": news}})
                    return
                reply += news
                text = self._tokenizer.decode(reply).rstrip("\ufffd")
                yield _event({"choices": [{"index": 0, "text": text[len(said) :], "token_ids": news}]})
                said = text
        finally:
            asked.abandoned.set()
        usage = {"prompt_tokens": len(asked.ids), "completion_tokens": len(reply)}
        yield _event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        yield _event({"choices": [], "usage": usage})
        yield "data: [DONE]\n\n"


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"


def main() -> None:
    """Load and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="DIR", type=Path, required=True)
    parser.add_argument("--port", type=int, default=8003)
    parser.add_argument("--cache-gib", type=int, default=4, help="memory of the KV cache [default: 4]")
    parser.add_argument("--batched-tokens", type=int, default=512, help="most tokens of a step [default: 512]")
    arguments = parser.parse_args()
    config = json.loads((arguments.model / "config.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    pipeline = Pipeline(arguments.model, cache_gib=arguments.cache_gib, batched_tokens=arguments.batched_tokens)
    pipeline.start()
    front = Front(pipeline, tokenizer, arguments.model.name, config["max_position_embeddings"])
    routes = [
        Route("/v1/models", front.models),
        Route("/v1/completions", front.completions, methods=["POST"]),
    ]
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=arguments.port, log_level="warning")


if __name__ == "__main__":
    main()
