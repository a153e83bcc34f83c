"""`GET /cache/explain/{id}`: why the tokens of a request's prompt were not cached.

A tenant is told about its own requests only, and others' are as unknown to it as those that never were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mainstem.explain import Record
from mainstem.explain.report import explanation
from mainstem.server.auth import is_operator, tenant_of
from mainstem.server.diagnostics import diagnose
from mainstem.server.errors import ApiError
from mainstem.server.parts import Part, parts_of
from mainstem.server.workers import in_worker
from mainstem.tree import namespace_key

if TYPE_CHECKING:
    from mainstem.server.service import Service

LAST = "last"


def router(service: Service) -> APIRouter:
    """The route, bound to a service."""
    routes = APIRouter()

    @routes.get("/cache/explain/{request_id}")
    async def explain(request: Request, request_id: str) -> Response:
        """Tells of a reply by its id, or by the x-request-id that it came with; of the latest one by `last`."""
        if not service.engine.config.explain_records:
            raise ApiError(404, "This server keeps no records (--explain-records 0).", code="no_records")
        record = await _find(service, request, request_id)
        if record is None:
            raise ApiError(
                404,
                f"No request '{request_id[:100]}' is remembered here: it never was, or made room for later ones.",
                code="request_not_found",
            )
        return JSONResponse(await _explain(service, request, record))

    return routes


async def _find(service: Service, request: Request, request_id: str) -> Record | None:
    def visible(record: Record) -> bool:
        return _is_own(request, record) or is_operator(request)

    if request_id == LAST:
        return await service.engine.latest_record(visible)
    return next(filter(visible, service.engine.records_of(request_id)), None)


async def _explain(service: Service, request: Request, record: Record) -> dict[str, Any]:
    engine = service.engine
    tokens = await engine.tokens_of(record)
    if record.difference is None and record.closest is not None and record.closest.earlier is not None:
        await diagnose(service, record, tokens[: record.num_prompt], namespace=tenant_of(request))
    parts: list[Part] = []
    if len(tokens):
        parts = await in_worker(
            tenant_of(request),
            lambda: parts_of(tokens, record.num_prompt, record.conversation, engine.tokenizer, record.places),
        )
    return explanation(
        record,
        difference=record.difference,
        parts=parts,
        in_confidence=is_operator(request),
        same_tenant=lambda name: any(_is_own(request, other) for other in engine.records_of(name)),
    )


def _is_own(request: Request, record: Record) -> bool:
    tenant = namespace_key(tenant_of(request))
    return record.namespace[: len(tenant)] == tenant
