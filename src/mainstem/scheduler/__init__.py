"""Which requests run in the next step, and how many tokens of each."""

from mainstem.scheduler.request import Request, RequestState, TokenBuffer
from mainstem.scheduler.scheduler import (
    DECODE_RESERVATION,
    LogitSource,
    ScheduledTokens,
    Scheduler,
    SchedulerOutput,
)

__all__ = [
    "DECODE_RESERVATION",
    "LogitSource",
    "Request",
    "RequestState",
    "ScheduledTokens",
    "Scheduler",
    "SchedulerOutput",
    "TokenBuffer",
]
