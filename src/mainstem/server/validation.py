"""Turns a request's bytes into a checked object, and what is wrong with it into one plain sentence.

Knows JSON, sizes and types. It does not know what any field means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import Request

from mainstem.server.errors import ApiError, Code
from mainstem.wording import LONGEST_TEXT, json_value

# Parsing holds up the event loop, so the limit follows from the longest prompt that can be served.
BODY_BYTES_PER_TOKEN = 64
SMALLEST_BODY_LIMIT, LARGEST_BODY_LIMIT = 2 * 2**20, 16 * 2**20
BODY_TIMEOUT_S = 60.0


def body_limit(max_model_len: int) -> int:
    """Longest body that is read, in bytes."""
    return min(max(BODY_BYTES_PER_TOKEN * max_model_len, SMALLEST_BODY_LIMIT), LARGEST_BODY_LIMIT)


class Body(BaseModel):
    """Base of request bodies: unknown fields are ignored, and no type is converted into another (true is not 1)."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


BodyT = TypeVar("BodyT", bound=Body)


def parse_body(raw: bytes, kind: type[BodyT]) -> BodyT:
    """The object in a body.

    Raises:
        ApiError: 400 when it is not JSON or has a wrong field.
    """
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        if "recursion limit" in str(error):
            raise ApiError(400, f"The body is nested too deeply: {error}.", code="invalid_json") from None
        raise ApiError(400, f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"The body must be a JSON object, but it is {_name_of(value)}.", code="invalid_json")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ApiError(400, fault_of(first), param=field_path(first["loc"]), code=_code(first)) from None


async def read_body(request: Request, kind: type[BodyT], *, limit: int) -> BodyT:
    """Read and check the body of a request.

    Args:
        request: whose body it is.
        kind: of object that it must be.
        limit: most bytes.

    Raises:
        ApiError: as `read_bytes`, and 400 when it is not JSON or has a wrong field.
        ClientDisconnect: when the client goes away before the body is complete.
    """
    return parse_body(await read_bytes(request, limit=limit), kind)


async def read_bytes(request: Request, *, limit: int) -> bytes:
    """The body of a request as it came, which `num_bytes` counts from now on.

    Raises:
        ApiError: 408 when it does not arrive in time, 413 when it is longer than `limit` bytes, 415 when it is not
            declared as JSON.
        ClientDisconnect: when the client goes away before the body is complete.
    """
    _check_content_type(request)
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            raw = await _received(request, limit)
    except TimeoutError:
        raise ApiError(
            408, "The body did not arrive in time.", code="body_timeout", headers={"connection": "close"}
        ) from None
    request.scope["mainstem.num_bytes"] = len(raw)
    return raw


def num_bytes(request: Request) -> int:
    """How long the body of a request is that has been read."""
    length: int = request.scope["mainstem.num_bytes"]
    return length


def field_path(loc: Sequence[int | str]) -> str:
    """`("messages", 0, "role")` as `messages[0].role`."""
    path = ""
    for step in loc:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _check_content_type(request: Request) -> None:
    # A browser may send any other type across origins without asking first, so a page could use a local server unasked.
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        found = f"'{media_type}'" if media_type else "no content-type"
        raise ApiError(
            415,
            f"The body must be sent with the header 'content-type: application/json', but the request has {found}.",
            code="unsupported_media_type",
        )


async def _received(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(int(declared), limit)
    chunks, length = [], 0
    async for chunk in request.stream():
        chunks.append(chunk)
        length += len(chunk)
        if length > limit:
            raise _too_large(length, limit)
    return b"".join(chunks)


def _too_large(length: int, limit: int) -> ApiError:
    return ApiError(
        413,
        f"The body has {length} bytes or more; with this model the server reads at most {limit}.",
        code="body_too_large",
        headers={"connection": "close"},
    )


_EXPECTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
}


def fault_of(error: ErrorDetails) -> str:
    """What is wrong with a field, in a sentence."""
    path = field_path(error["loc"])
    if error["type"] == "missing":
        return f"'{path}' is required."
    if error["type"] == "extra_forbidden":
        return f"'{path}' is not a field that is known here."
    if expected := _EXPECTED.get(error["type"]):
        return f"'{path}' must be {expected}, but it is {_name_of(error['input'])}."
    return f"'{path}' is not valid: {error['msg']}."


def _code(error: ErrorDetails) -> Code:
    match error["type"]:
        case "missing":
            return "missing_required_parameter"
        case "extra_forbidden":
            return "unknown_parameter"
        case _:
            return "invalid_type"


def _name_of(value: Any) -> str:
    return (
        f"the string {json_value(value)}"
        if isinstance(value, str) and len(value) <= LONGEST_TEXT
        else json_value(value)
    )
