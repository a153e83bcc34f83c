"""Which requests run in the next step, and how many tokens of each."""

from mainstem.scheduler.observer import SchedulerObserver
from mainstem.scheduler.output import Hold, LogitSource, ScheduledTokens, SchedulerOutput, ScoredTokens
from mainstem.scheduler.request import Request, RequestState, TokenBuffer
from mainstem.scheduler.scheduler import DECODE_RESERVATION, Scheduler
from mainstem.scheduler.step import MAX_SCORED_TOKENS
from mainstem.scheduler.tenants import TenantLoad
from mainstem.scheduler.upkeep import Upkeep

__all__ = [
    "DECODE_RESERVATION",
    "MAX_SCORED_TOKENS",
    "Hold",
    "LogitSource",
    "Request",
    "RequestState",
    "ScheduledTokens",
    "Scheduler",
    "SchedulerObserver",
    "SchedulerOutput",
    "ScoredTokens",
    "TenantLoad",
    "TokenBuffer",
    "Upkeep",
]
