"""One turn of a conversation, whichever API asks for it: its prompt, what its reply must follow, how it is taken apart.

Here the three APIs meet. Rendering, tool calls and grammars are the business of `tokens` and `tools`; this module puts
them together for the model that is served. It knows no API's form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from mainstem.errors import InvalidRequest
from mainstem.server.prompts import Prompt, chat_prompt, work_on
from mainstem.server.workers import work_for
from mainstem.tools import ReplyParser, ToolChoice, reply_grammar
from mainstem.tools.syntax import Hermes

if TYPE_CHECKING:
    from starlette.requests import Request

    from mainstem.params import SamplingParams
    from mainstem.server.service import Service
    from mainstem.tokens import Conversation
    from mainstem.tokens.placed import Places
    from mainstem.tree import Namespace

FREE = ToolChoice()
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What is asked for.

    Attributes:
        conversation: what was said, and the tools on offer.
        params: of the sampling.
        choice: whether the reply may or must call a tool.
        schema: of the JSON that the reply must be; None for text.
        places: where the conversation's texts stand in the body; None for those of Chat Completions.
    """

    conversation: Conversation
    params: SamplingParams
    choice: ToolChoice = FREE
    schema: Mapping[str, Any] | None = None
    places: Places | None = None


class ReadyTurn(NamedTuple):
    """A turn that can be generated: its prompt, its parameters, and what takes a reply apart."""

    prompt: Prompt
    params: SamplingParams
    new_parser: Callable[[], ReplyParser]


async def prepare(service: Service, request: Request, turn: Turn, *, namespace: Namespace = ()) -> ReadyTurn:
    """Make a turn's prompt, and what its reply must follow.

    Args:
        service: whose model is to reply.
        request: that asks.
        turn: what is asked for.
        namespace: whose turn it is, and whose history the prompt may use.

    Raises:
        InvalidRequest: when the tool choice does not fit the tools, or the prompt cannot be made.
        ApiError: when the conversation is far too long for the model.
        ClientDisconnect: when the client goes away first.
    """
    conversation = replace(turn.conversation, namespace=namespace)
    work = partial(_prepare, service, replace(turn, conversation=conversation))
    return await work_for(request, work_on(request, conversation), work)


def _prepare(service: Service, turn: Turn) -> ReadyTurn:
    _check_choice(turn)
    tools, choice = service.engine.tokenizer.chat.offered(turn.conversation.tools), turn.choice
    prompt = chat_prompt(service, turn.conversation)
    assert prompt.text is not None
    dialect = service.dialect
    reasoning = dialect.reasoning
    in_reasoning = reasoning is not None and prompt.text.rstrip().endswith(reasoning.start)
    grammar = reply_grammar(
        dialect.syntax,
        tools,
        choice,
        schema=turn.schema,
        reasoning=reasoning,
        in_reasoning=in_reasoning,
        special_id=service.engine.tokenizer.special_id,
    )
    allowed = {tool.name for tool in choice.allowed(tools)}
    # A call that is forced on a model whose own syntax is unknown is written in this one.
    syntax = (dialect.syntax or Hermes()) if allowed else None

    def new_parser() -> ReplyParser:
        return ReplyParser(
            syntax,
            allowed,
            reasoning=reasoning,
            in_reasoning=in_reasoning,
            max_calls=None if choice.parallel else 1,
        )

    spoken = dialect.spoken_token_ids if syntax or reasoning else ()
    return ReadyTurn(prompt, replace(turn.params, grammar=grammar, spoken_token_ids=spoken), new_parser)


@contextmanager
def naming_schema(turn: Turn, *, schema_param: str) -> Iterator[None]:
    """Within it, a schema that cannot be used is blamed on the field that the client gave it in."""
    try:
        yield
    except InvalidRequest as error:
        if error.param == "grammar":
            param = schema_param if turn.schema is not None else "tools"
            raise InvalidRequest(
                str(error).replace("The grammar, or a JSON schema in it,", "The JSON schema"), param=param
            ) from None
        raise


def _check_choice(turn: Turn) -> None:
    tools, choice = turn.conversation.tools, turn.choice
    offered = {tool.name for tool in tools}
    missing = [name for name in choice.names or () if name not in offered]
    if missing:
        raise InvalidRequest(
            f"tool_choice names '{missing[0][:100]}', which is not among the tools", param="tool_choice"
        )
    if choice.mode == "required" and not choice.allowed(tools):
        raise InvalidRequest("tool_choice asks for a tool call, but there are no tools to call", param="tool_choice")
