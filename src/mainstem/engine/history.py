"""The token history of an engine's chats. It knows the engine's settings; what a history does is `tokens`' business."""

from __future__ import annotations

from mainstem.config import EngineConfig, parse_size
from mainstem.tokens import TokenHistory, Tokenizer


def new_history(config: EngineConfig, tokenizer: Tokenizer) -> TokenHistory:
    """An empty history, as large as the settings allow."""
    return TokenHistory(tokenizer, max_entries=config.history_entries, max_bytes=parse_size(config.history_memory))
