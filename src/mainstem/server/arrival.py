"""A request of any API that has been read, and what is left to do before it can be generated: its prompt.

It knows no API's form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple

from mainstem.server.auth import tenant_of
from mainstem.server.bodies import BodyT
from mainstem.server.lifetime import Lifetime
from mainstem.server.turns import ReadyTurn, Turn, prepare

if TYPE_CHECKING:
    from starlette.requests import Request

    from mainstem.server.service import Service


class Arrived(NamedTuple, Generic[BodyT]):
    """A request that can be generated."""

    body: BodyT
    turn: Turn
    namespace: tuple[str, ...]
    lifetime: Lifetime
    ready: ReadyTurn


async def make_ready(
    service: Service, request: Request, body: BodyT, turn: Turn, *, namespace: tuple[str, ...], lifetime: Lifetime
) -> Arrived[BodyT]:
    """Make a request's prompt, and remember its body.

    Raises:
        InvalidRequest, ApiError: when it cannot be served.
        ClientDisconnect: when the client goes away first.
    """
    ready = await prepare(service, request, turn, namespace=namespace)
    service.bodies.keep(body, tenant_of(request), namespace)
    return Arrived(body, turn, namespace, lifetime, ready)
