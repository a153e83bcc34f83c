"""Prefixes that the operator declares public: read from files, and rendered as the prompts that will begin with them.

It knows files, texts and conversations; that tenants may share what it makes of them is the prefix cache's business.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mainstem.errors import ConfigError, InvalidRequest
from mainstem.tokens import Conversation, Message
from mainstem.tokens.chat import read_messages, read_tools
from mainstem.tree import common_length

if TYPE_CHECKING:
    from mainstem.config import ServerConfig
    from mainstem.tokens import Tokenizer
    from mainstem.tree import TokenArray


class SharedPrefix(NamedTuple):
    """What one file declares.

    Attributes:
        file: its name.
        text: of a plain completion, None if it is a conversation only.
        conversation: its messages and tools.
    """

    file: str
    text: str | None
    conversation: Conversation


def read_shared_prefixes(config: ServerConfig) -> list[SharedPrefix]:
    """What the files in the settings declare.

    A file that ends in .json holds `{"messages": [...], "tools": [...]}`. Any other holds a text, without the line
    break at its end: a system message, or how plain completions begin.

    Raises:
        ConfigError: when one cannot be read or understood.
    """
    return [_read(name.strip()) for name in (config.shared_prefix or "").split(",") if name.strip()]


def tokens_of(prefix: SharedPrefix, tokenizer: Tokenizer) -> list[TokenArray]:
    """The beginnings of prompts that a prefix declares, as token ids, the one that most prompts will have first.

    That is the conversation, unless the model has no chat template; then the text, if there is one. A conversation is
    rendered twice, with two different messages after it: what both have in common is its own.

    Raises:
        ConfigError: when the model's chat template cannot render it.
    """
    plain = [] if prefix.text is None else [tokenizer.encode_prompt(prefix.text)]
    if not tokenizer.chat.exists:
        return plain
    messages = prefix.conversation.messages
    role = "assistant" if messages and messages[-1].role == "user" else "user"
    try:
        one, other = (
            tokenizer.encode(
                tokenizer.chat.render(
                    replace(prefix.conversation, messages=(*messages, Message(role=role, parts=(text,)))),
                    add_generation_prompt=False,
                )
            )
            for text in ("1", "two")
        )
    except InvalidRequest as error:
        raise ConfigError(f"{prefix.file}: {error}", setting="shared_prefix") from None
    return [one[: common_length(one, other)], *plain]


def _read(name: str) -> SharedPrefix:
    try:
        text = Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}", setting="shared_prefix") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name} is not UTF-8 text", setting="shared_prefix") from None
    if not name.endswith(".json"):
        text = text.removesuffix("\n").removesuffix("\r")  # the one that editors put at the end of a file
        if not text:
            raise ConfigError(f"{name} is empty", setting="shared_prefix")
        return SharedPrefix(name, text, Conversation((Message(role="system", parts=(text,)),), ()))
    try:
        value: Any = json.loads(text)
        if isinstance(value, dict) and isinstance(value.get("messages"), list):
            conversation = Conversation(read_messages(value["messages"]), read_tools(value.get("tools")))
            return SharedPrefix(name, None, conversation)
    except (ValueError, RecursionError, InvalidRequest) as error:
        raise ConfigError(f"{name}: {error}", setting="shared_prefix") from None
    raise ConfigError(f"{name} must hold an object with a list of messages", setting="shared_prefix")
