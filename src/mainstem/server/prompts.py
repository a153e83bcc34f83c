"""From the prompt fields of a request to token ids: text, chat messages, or ids that the client made itself.

Long texts are tokenized in a worker thread, so that running streams go on meanwhile. It knows nothing of replies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from mainstem.errors import InvalidRequest, PromptTooLong
from mainstem.server.errors import ApiError
from mainstem.server.validation import num_bytes
from mainstem.server.workers import PIECE_CHARACTERS, work_for
from mainstem.tokens.breakpoints import PromptBreakpoint, locate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request

    from mainstem.server.service import Service
    from mainstem.tokens import Conversation, KnownPrompt, Message, Tokenizer

TokenArray: TypeAlias = npt.NDArray[np.int32]

MAX_SEQUENCES = 128
# No prompt that fits has more characters a token than this; tokenizing one that has would only cost memory.
MAX_CHARACTERS_PER_TOKEN = 64
MIN_CHARACTER_LIMIT = 200_000


class Prompt(NamedTuple):
    """One prompt: its token ids (int32, at least one), its text where it was not sent as ids, and if it is a chat's,
    where its tokens are from and what of it is to be kept.
    """

    ids: TokenArray
    text: str | None
    known: KnownPrompt | None = None
    breakpoints: tuple[PromptBreakpoint, ...] = ()


async def completion_prompts(service: Service, request: Request, value: Any, n: int) -> list[Prompt]:
    """The prompts in the `prompt` field of a plain completion: a string, a list of strings, ids, or lists of ids.

    Args:
        request: that it came with.
        value: the field.
        n: replies to generate per prompt; prompts times n must not exceed MAX_SEQUENCES.

    Raises:
        InvalidRequest: when it is none of these, is empty, or has an id that the model does not know.
        PromptTooLong, ApiError: when it is too long for the model.
    """
    return await work_for(
        request, num_bytes(request), lambda: [_prompt(service, name, entry) for name, entry in _entries(value, n)]
    )


async def encode_text(
    service: Service, request: Request, text: str, *, add_special_tokens: bool, param: str
) -> TokenArray:
    """Token ids of a text, as a plain completion's prompt or (without special tokens) as it is."""
    encode = _encode_prompt if add_special_tokens else _encode
    return await work_for(request, len(text), lambda: encode(service, text, param))


async def decode_ids(service: Service, request: Request, ids: TokenArray) -> str:
    """Text of token ids, special tokens included."""
    return await work_for(request, len(ids), lambda: service.engine.tokenizer.decode(ids, skip_special_tokens=False))


async def encode_chat(
    service: Service,
    request: Request,
    conversation: Conversation,
    *,
    add_generation_prompt: bool = True,
) -> Prompt:
    """What `chat_prompt` makes of a conversation that came with a request.

    Raises:
        InvalidRequest, ApiError: as `chat_prompt`.
        ClientDisconnect: when the client goes away first.
    """

    def work() -> Prompt:
        return chat_prompt(service, conversation, add_generation_prompt=add_generation_prompt)

    return await work_for(request, work_on(request, conversation), work)


def num_pieces(messages: Iterable[Message]) -> int:
    """How many messages, parts of them and tool calls there are."""
    return sum([1 + len(message.parts) + len(message.tool_calls) for message in messages])


def work_on(request: Request, conversation: Conversation) -> int:
    """About how much there is to do for a conversation that came with a request, in characters.

    Tools and schemas are weighed by the bytes in which they came.
    """
    messages = conversation.messages
    characters = sum([message.characters for message in messages]) + PIECE_CHARACTERS * num_pieces(messages)
    return max(characters, num_bytes(request))


def chat_prompt(service: Service, conversation: Conversation, *, add_generation_prompt: bool = True) -> Prompt:
    """A conversation, rendered with the model's chat template, with the token ids that are known of it.

    Args:
        service: whose model it is for.
        conversation: what was said; its namespace says whose history is used.
        add_generation_prompt: end where a reply begins.

    Raises:
        InvalidRequest: when the template cannot render it.
        ApiError: when the conversation is far too long for the model.
    """
    characters = sum([message.characters for message in conversation.messages])
    # JSON has more characters than a prompt shows, but not many times as many.
    characters += sum([len(tool.definition().as_json(ensure_ascii=False)) for tool in conversation.tools])
    _check_characters(service, characters, "messages")
    tokenizer: Tokenizer = service.engine.tokenizer
    history = service.engine.history
    meaning = service.dialect.meaning([tool.name for tool in conversation.tools])
    text = tokenizer.chat.render(conversation, add_generation_prompt=add_generation_prompt)
    known = history.encode(text, namespace=conversation.namespace, meaning=meaning)
    return Prompt(known.ids, known.text, known, locate(conversation, known, tokenizer.encode))


def token_ids(value: Any, vocab_size: int, name: str) -> TokenArray:
    """A JSON list of token ids as int32 array; `name` is how errors call it.

    Raises:
        InvalidRequest: when the list is empty, or an entry is no id of the model.
    """
    if not isinstance(value, list) or set(map(type, value)) - {int}:
        raise InvalidRequest(f"{name} must be a list of token ids (integers)", param=name)
    if not value:
        raise InvalidRequest(f"{name} must have at least one token", param=name)
    if min(value) < 0 or max(value) >= vocab_size:
        raise InvalidRequest(
            f"{name} has token ids outside this model's vocabulary (0 to {vocab_size - 1})", param=name
        )
    return np.array(value, dtype=np.int32)


def _entries(value: Any, n: int) -> list[tuple[str, Any]]:
    """The prompts of the field, to each of which there are n replies, with the names that errors give them."""
    if isinstance(value, str):
        return [("prompt", value)]
    if not isinstance(value, list):
        raise InvalidRequest("prompt must be a string, a list of strings, or token ids", param="prompt")
    if not value:
        raise InvalidRequest("prompt must not be an empty list", param="prompt")
    if isinstance(value[0], str | list):
        if len(value) * n > MAX_SEQUENCES:
            raise InvalidRequest(
                f"{len(value)} prompts with {n} replies each make {len(value) * n}; at most {MAX_SEQUENCES} can be",
                param="prompt",
            )
        for position, entry in enumerate(value):
            if not isinstance(entry, type(value[0])):
                raise InvalidRequest("prompt must not mix strings and lists of token ids", param=f"prompt[{position}]")
        return [(f"prompt[{position}]", entry) for position, entry in enumerate(value)]
    return [("prompt", value)]


def _encode_prompt(service: Service, text: str, param: str) -> TokenArray:
    _check_characters(service, len(text), param)
    return service.engine.tokenizer.encode_prompt(text)


def _encode(service: Service, text: str, param: str) -> TokenArray:
    _check_characters(service, len(text), param)
    return service.engine.tokenizer.encode(text)


def _prompt(service: Service, name: str, entry: Any) -> Prompt:
    if isinstance(entry, str):
        ids = _encode_prompt(service, entry, name)
        if not len(ids):
            raise InvalidRequest(f"{name} is empty; this model needs at least one token to continue", param=name)
        _check_length(service, len(ids), name)
        return Prompt(ids, entry)
    if isinstance(entry, list):
        _check_length(service, len(entry), name)
    return Prompt(token_ids(entry, service.engine.tokenizer.vocab_size, name), None)


def _check_length(service: Service, length: int, name: str) -> None:
    # The engine would say so too, but does not know which prompt of several it is.
    if length >= service.engine.max_model_len:
        raise PromptTooLong(length, service.engine.max_model_len, param=name)


def _check_characters(service: Service, characters: int, param: str) -> None:
    limit = max(MIN_CHARACTER_LIMIT, MAX_CHARACTERS_PER_TOKEN * service.engine.max_model_len)
    if characters > limit:
        raise ApiError(
            400,
            f"This model serves at most {service.engine.max_model_len} tokens (prompt and reply together), but the "
            f"prompt has {characters} characters, which cannot fit. Shorten the prompt.",
            param=param,
            code="context_length_exceeded",
        )
