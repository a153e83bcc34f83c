"""Errors as clients expect them: an HTTP status, and a body in the form of the API that was asked.

OpenAI's body is `{"error": {"message", "type", "param", "code"}}`, Anthropic's `{"type": "error", "error": {"type",
"message"}}`. Knows which of our exceptions has which status. It decides nothing about when an error is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from starlette.responses import JSONResponse
from starlette.types import Scope

from mainstem.errors import (
    EngineDied,
    EngineFailed,
    EngineStopped,
    InvalidRequest,
    MainstemError,
    ModelNotFound,
    PromptTooLong,
)

Code: TypeAlias = Literal[
    "body_timeout",
    "body_too_large",
    "context_length_exceeded",
    "engine_died",
    "engine_failed",
    "internal_error",
    "invalid_api_key",
    "invalid_json",
    "invalid_type",
    "invalid_value",
    "method_not_allowed",
    "missing_required_parameter",
    "model_not_found",
    "no_records",
    "operator_required",
    "previous_response_not_found",
    "request_not_found",
    "request_too_large",
    "response_not_found",
    "shutting_down",
    "unknown_parameter",
    "unknown_url",
    "unsupported_media_type",
]
"""All that the field `code` may say; docs/api.md has them in a table."""

RETRY_AFTER_SECONDS = 10
# Characters; what a refusal quotes of a body may be as long as the body.
MAX_MESSAGE = 500
ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ApiError(MainstemError):
    """An error reply: HTTP status, and the four fields of OpenAI's error object.

    Attributes:
        status: HTTP status code.
        kind: the `type` field, such as `invalid_request_error`.
        param: path of the offending field of the body, or None.
        code: short machine-readable reason, or None.
        headers: extra response headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: Code | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + " …")
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON object sent to the client."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}

    def anthropic_body(self, request_id: str | None) -> dict[str, Any]:
        """The JSON object sent to Anthropic's clients, which have no field for `param`: the message names it."""
        kind = _ANTHROPIC_KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        message = str(self)
        if self.param is not None and self.param not in message:
            message = f"{self.param}: {message}"
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def is_anthropic(scope: Scope) -> bool:
    """Whether a request speaks Anthropic's API."""
    path: str = scope["path"]
    return path == ANTHROPIC_PATH or path.startswith(ANTHROPIC_PATH + "/")


def error_response(error: ApiError, scope: Scope) -> JSONResponse:
    """The whole HTTP reply, in the form of the API that was asked."""
    body = error.anthropic_body(scope.get("mainstem.request_id")) if is_anthropic(scope) else error.body()
    return JSONResponse(body, status_code=error.status, headers=error.headers)


def to_api_error(error: Exception) -> ApiError:
    """The reply for any exception; one we did not raise on purpose becomes a 500 that says nothing of its inside."""
    match error:
        case ApiError():
            return error
        case PromptTooLong():
            return ApiError(400, str(error), param=error.param, code="context_length_exceeded")
        case InvalidRequest():
            return ApiError(400, str(error), param=error.param, code="invalid_value")
        case ModelNotFound():
            return ApiError(404, str(error), param=error.param, code="model_not_found")
        case EngineDied():
            return ApiError(503, str(error), kind="server_error", code="engine_died")
        case EngineStopped():
            return shutting_down(str(error))
        case EngineFailed():
            return ApiError(500, str(error), kind="server_error", code="engine_failed")
        case _:
            return ApiError(
                500,
                "The server failed to answer this request. Its log says why, under the x-request-id of this reply.",
                kind="server_error",
                code="internal_error",
            )


def shutting_down(message: str = "The server is shutting down. Send the request again in a moment.") -> ApiError:
    """503 for requests that come, or are still running, when the server stops."""
    return ApiError(
        503,
        message,
        kind="server_error",
        code="shutting_down",
        headers={"retry-after": str(RETRY_AFTER_SECONDS)},
    )
