"""Which requests run in the next step, and how many tokens of each."""

from mainstem.scheduler.request import Namespace, Request, RequestState, TokenArray
from mainstem.scheduler.scheduler import LogitSource, ScheduledTokens, Scheduler, SchedulerOutput

__all__ = [
    "LogitSource",
    "Namespace",
    "Request",
    "RequestState",
    "ScheduledTokens",
    "Scheduler",
    "SchedulerOutput",
    "TokenArray",
]
