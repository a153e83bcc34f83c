"""`POST /v1/chat/completions/render`: the prompt that a chat request would have, without a reply.

Says which part of the prompt comes from which field, so that one can see where two prompts part. It starts nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mainstem.diagnosis import Field, Kind, prompt_of
from mainstem.server.auth import tenant_of
from mainstem.server.chat import arrive
from mainstem.server.openapi import takes
from mainstem.server.protocol import ChatBody
from mainstem.server.service import Service
from mainstem.server.workers import in_worker
from mainstem.tokens import Conversation, Tokenizer
from mainstem.tokens.known_prompt import Span
from mainstem.tokens.placed import Places

TEMPLATE = "template"


class Piece(NamedTuple):
    """A stretch of the prompt's text, and the field it comes from; `template` for what the template adds."""

    source: str
    start: int
    stop: int


def router(service: Service) -> APIRouter:
    """The route, bound to a service."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions/render", openapi_extra=takes(ChatBody))
    async def render(request: Request) -> Response:
        _, turn, _, _, ready = await arrive(service, request)

        def work() -> Response:
            text = ready.prompt.text or ""
            ids = ready.prompt.ids.tolist()
            ends = token_ends(service.engine.tokenizer, ids, text)
            return JSONResponse(
                {
                    "object": "chat.completion.render",
                    "model": service.model_name,
                    "prompt": text,
                    "token_ids": ids,
                    "count": len(ids),
                    "max_model_len": service.engine.max_model_len,
                    "parts": [_part(piece, text, ends) for piece in pieces(turn.conversation, text, turn.places)],
                    "spans": [_span(span) for span in ready.prompt.known.spans] if ready.prompt.known else [],
                    "grammar": ready.params.grammar,
                }
            )

        return await in_worker(tenant_of(request), work)

    return routes


def pieces(conversation: Conversation, prompt: str, places: Places | None = None) -> Iterator[Piece]:
    """The prompt's text in pieces, without a gap; texts that the template changed count as the template's."""
    at = 0
    for field in _fields(conversation, places):
        # Templates strip texts, but do not change what is within.
        text = field.text.strip() if field.kind is Kind.TEXT else field.text
        found = prompt.find(text, at) if text else -1
        if found < 0:
            continue
        if found > at:
            yield Piece(TEMPLATE, at, found)
        at = found + len(text)
        yield from _divided(field, Piece(field.path, found, at))
    if at < len(prompt):
        yield Piece(TEMPLATE, at, len(prompt))


def token_ends(tokenizer: Tokenizer, ids: list[int], text: str) -> list[int]:
    """For each token, how many characters of the text it and those before it make.

    A character in pieces counts with its last token. Where the tokens do not spell the text to the byte, as with
    tokenizers that normalise it, the last token ends where the text does.
    """
    ends, size = [], 0
    for token_id in ids:
        # Every character has one byte that does not continue another.
        size += sum(byte & 0xC0 != 0x80 for byte in tokenizer.token_bytes(token_id))
        ends.append(min(size, len(text)))
    return ends


def _fields(conversation: Conversation, places: Places | None) -> Iterator[Field]:
    for message in prompt_of(conversation, places).messages:
        yield from message.fields


def _divided(field: Field, whole: Piece) -> Iterator[Piece]:
    """The pieces in which a text was sent."""
    left_out = len(field.text) - len(field.text.lstrip())
    starts = [(max(whole.start, whole.start + at - left_out), path) for at, path in field.parts]
    for (start, path), (stop, _) in pairwise([*starts, (whole.stop, "")]):
        if start < min(stop, whole.stop):
            yield Piece(path, start, min(stop, whole.stop))
    if not starts:
        yield whole


def _span(span: Span) -> dict[str, Any]:
    """Where a stretch of the prompt has its token ids from."""
    return {
        "origin": span.origin,
        "characters": [span.start, span.stop],
        "tokens": [span.first, span.end],
    }


def _part(piece: Piece, text: str, ends: list[int]) -> dict[str, Any]:
    return {
        "source": piece.source,
        "text": text[piece.start : piece.stop],
        "characters": [piece.start, piece.stop],
        "tokens": [bisect_left(ends, piece.start + 1), bisect_left(ends, piece.stop + 1)],
    }
