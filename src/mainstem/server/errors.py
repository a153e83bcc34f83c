"""Errors as OpenAI's clients expect them: `{"error": {"message", "type", "param", "code"}}` and an HTTP status.

Knows which of our exceptions has which status. It decides nothing about when an error is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from mainstem.errors import (
    EngineFailed,
    EngineStopped,
    InvalidRequest,
    MainstemError,
    ModelNotFound,
    PromptTooLong,
)

RETRY_AFTER_SECONDS = 10


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
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON object sent to the client."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The whole HTTP reply."""
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)


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
