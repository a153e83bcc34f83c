"""Text and messages to token ids and back.

This layer knows tokenizers, chat templates, incremental detokenization and stop strings. It knows nothing of memory,
models or requests. `transformers` is imported only when a tokenizer is loaded; torch is not needed.
"""

from mainstem.tokens.conversation import Conversation, Message, Tool, ToolCall
from mainstem.tokens.detokenize import DetokenizerStream
from mainstem.tokens.history import TokenHistory
from mainstem.tokens.known_prompt import KnownPrompt
from mainstem.tokens.stop import StopStrings, StopUpdate
from mainstem.tokens.tokenizer import TokenArray, Tokenizer

__all__ = [
    "Conversation",
    "DetokenizerStream",
    "KnownPrompt",
    "Message",
    "StopStrings",
    "StopUpdate",
    "TokenArray",
    "TokenHistory",
    "Tokenizer",
    "Tool",
    "ToolCall",
]
