"""The step loop, and the engine as a library: `LLM` for a script, `AsyncEngine` for a server."""

from mainstem.engine.async_engine import AsyncEngine
from mainstem.engine.branch import Branch, Score
from mainstem.engine.budget import MemoryBudget
from mainstem.engine.build import build_engine
from mainstem.engine.core import EngineCore
from mainstem.engine.llm import LLM
from mainstem.engine.outputs import (
    EngineStats,
    FinishReason,
    PositionLogprobs,
    RequestOutput,
    RequestUsage,
    StepTimes,
    TokenLogprob,
)
from mainstem.engine.result import Generation, ReplyResult
from mainstem.engine.sharing import SharingReport

__all__ = [
    "LLM",
    "AsyncEngine",
    "Branch",
    "EngineCore",
    "EngineStats",
    "FinishReason",
    "Generation",
    "MemoryBudget",
    "PositionLogprobs",
    "ReplyResult",
    "RequestOutput",
    "RequestUsage",
    "Score",
    "SharingReport",
    "StepTimes",
    "TokenLogprob",
    "build_engine",
]
