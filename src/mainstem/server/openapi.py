"""The OpenAPI document: what each route takes, from the very classes that check it, and how it may refuse.

Routes read their bodies themselves (`validation`), so FastAPI does not know them by itself.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from mainstem.server.validation import Body

REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The body is not JSON, or a field has a value that cannot be served; `param` names it."},
    401: {"description": "The key is missing or unknown."},
    403: {"description": "The key is no operator's."},
    404: {"description": "There is no such model, response or path."},
    405: {"description": "The path takes another method."},
    408: {"description": "The body did not arrive in time."},
    413: {"description": "The body is too long."},
    414: {"description": "The path is too long."},
    415: {"description": "The body is not declared as JSON."},
    431: {"description": "There are too many headers, or one is too long."},
    500: {"description": "Computing failed."},
    503: {"description": "The server is shutting down, or its engine has died."},
}
"""Every status but 200 that a route may answer with."""
_SCHEMAS = "#/components/schemas/"


def takes(kind: type[Body]) -> dict[str, Any]:
    """What a route's decorator is given as `openapi_extra`: the route reads a body of this kind."""
    schema = kind.model_json_schema(ref_template=_SCHEMAS + "{model}")
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def document(app: FastAPI) -> dict[str, Any]:
    """The whole document."""
    whole = app.openapi()
    schemas = whole.setdefault("components", {}).setdefault("schemas", {})
    for path in whole["paths"].values():
        for operation in path.values():
            for media in operation.get("requestBody", {}).get("content", {}).values():
                schemas |= media["schema"].pop("$defs", {})
    return whole
