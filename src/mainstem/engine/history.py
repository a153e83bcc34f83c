"""The token history of an engine's chats. It knows the engine's settings; what a history does is `tokens`' business."""

from __future__ import annotations

from mainstem.config import EngineConfig, parse_size
from mainstem.tokens import TokenHistory, Tokenizer

# For each byte of the history so many characters of rendered conversations are kept.
RENDERED_SHARE = 0.2


def new_history(config: EngineConfig, tokenizer: Tokenizer) -> TokenHistory:
    """An empty history, as large as the settings allow, and room for what its conversations were rendered to."""
    memory = parse_size(config.history_memory)
    tokenizer.chat.remember_at_most(int(RENDERED_SHARE * memory))
    return TokenHistory(tokenizer, max_entries=config.history_entries, max_bytes=memory)
