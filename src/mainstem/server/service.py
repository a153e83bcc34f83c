"""What every route of one app shares: the engine, the model's name, the metrics, and whether we are shutting down."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mainstem.errors import EngineDied, ModelNotFound
from mainstem.server.errors import shutting_down
from mainstem.server.validation import body_limit

if TYPE_CHECKING:
    from mainstem.config import ServerConfig
    from mainstem.engine import AsyncEngine
    from mainstem.server.bodies import BodyMemory
    from mainstem.server.metrics import Metrics
    from mainstem.server.stored import ResponseStore
    from mainstem.tools import Dialect


@dataclass
class Service:
    """The state of one app. There is no other: two apps in one process share nothing.

    Attributes:
        model_name: the one model name that clients may use.
        dialect: how the model writes tool calls and thoughts.
        bodies: that were read lately.
        responses: that later requests may refer to.
        created: Unix time at which the app was made, reported as the model's.
        closing: set once the server was told to stop; new requests, and those that have not wholly come, are then
            refused.
    """

    engine: AsyncEngine
    config: ServerConfig
    model_name: str
    metrics: Metrics
    dialect: Dialect
    responses: ResponseStore
    bodies: BodyMemory
    created: int = field(default_factory=lambda: int(time.time()))
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def caching(self) -> bool:
        """Whether there is a prefix cache."""
        return self.engine.config.prefix_cache != "none"

    @property
    def body_limit(self) -> int:
        """Longest request body that is read, in bytes."""
        return body_limit(self.engine.max_model_len)

    def check_model(self, name: str | None) -> None:
        """Accept the served name, or none at all.

        Raises:
            ModelNotFound: for any other name.
        """
        if name is not None and name != self.model_name:
            raise ModelNotFound(
                f"The model '{name[:100]}' does not exist here; this server serves '{self.model_name}'.", param="model"
            )

    def check_open(self) -> None:
        """Raise the 503 of a stopping server, or of a dead engine."""
        if self.engine.died:
            raise EngineDied
        if self.closing.is_set() or not self.engine.accepting:
            raise shutting_down()
