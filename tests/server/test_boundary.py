"""Exceptions nobody foresaw: logged in full, answered with a bare 500."""

from __future__ import annotations

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from mainstem.server.boundary import Boundary


async def broken(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise ZeroDivisionError("a secret of ours")


async def broken_halfway(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise ZeroDivisionError("a secret of ours")


async def test_stray_exception_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(Boundary(broken)), base_url="http://app") as http:
        response = await http.get("/somewhere", headers={"x-request-id": "the-id"})
    assert response.status_code == 500
    assert response.headers["x-request-id"] == "the-id"
    assert response.json()["error"]["type"] == "server_error"
    assert "secret" not in response.text
    assert "the-id" in caplog.text
    assert "a secret of ours" in caplog.text


async def test_exception_after_the_status_cuts_the_connection() -> None:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(Boundary(broken_halfway)), base_url="http://app"
    ) as http:
        with pytest.raises(ZeroDivisionError):
            await http.get("/somewhere")
