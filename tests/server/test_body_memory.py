"""Bodies that go on from known ones are what they would be if each were read alone, errors included."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mainstem.errors import InvalidRequest
from mainstem.server.bodies import BodyMemory
from mainstem.server.conversation_body import ConversationBody
from mainstem.server.errors import ApiError
from mainstem.server.messages import CountBody, MessagesBody
from mainstem.server.protocol import ChatBody, namespace_of
from mainstem.server.responses import ResponsesBody
from mainstem.server.validation import parse_body
from mainstem.tokens import anthropic, chat, responses
from mainstem.tokens.placed import Placed

TENANT, OTHER = ("tenant", "a"), ("tenant", "b")


def _messages(read: tuple[Placed, ...]) -> tuple[Any, ...]:
    return tuple(placed.message for placed in read)


class Api(NamedTuple):
    """One API: its bodies, how their items are read on, and how all of them are read at once."""

    kind: type[ConversationBody]
    extend: Any
    whole: Callable[[Any], tuple[Any, ...]]
    tools: Any


CHAT = Api(ChatBody, chat.add_message, chat.read_messages, chat.read_tools)
MESSAGES = Api(
    MessagesBody, anthropic.add_messages, lambda said: _messages(anthropic.read_messages(None, said)),
    anthropic.read_tools,
)  # fmt: skip
RESPONSES = Api(
    ResponsesBody, responses.add_item, lambda said: _messages(responses.read_input(said)), responses.read_tools
)
APIS = {"chat": CHAT, "messages": MESSAGES, "responses": RESPONSES}


def through(memory: BodyMemory, raw: bytes, api: Api = CHAT, tenant: tuple[str, ...] = TENANT) -> ConversationBody:
    """A body as a route reads it, and keeps it."""
    body = memory.parse(raw, api.kind, tenant)
    body.read_items(api.extend)
    body.read_tools(api.tools)
    memory.keep(body, tenant, namespace_of(getattr(body, "cache_salt", None), tenant))
    return body


def outcome(read: Callable[[], ConversationBody], api: Api) -> Any:
    """What is read, or what is wrong."""
    try:
        body = read()
        if not isinstance(getattr(body, body.ITEMS), list) or not getattr(body, body.ITEMS):
            return "no items"
        namespace_of(getattr(body, "cache_salt", None), TENANT)
        return repr(body), body.read_items(api.extend), body.read_tools(api.tools)
    except ApiError as error:
        return error.status, str(error), error.param, error.code
    except InvalidRequest as error:
        return str(error), error.param


def plainly(raw: bytes, api: Api) -> Any:
    found = outcome(lambda: parse_body(raw, api.kind), api)
    if isinstance(found, tuple) and len(found) == 3:
        items = getattr(parse_body(raw, api.kind), api.kind.ITEMS)
        assert _messages(found[1]) == api.whole(items)
    return found


def remembering(memory: BodyMemory, raw: bytes, api: Api, tenant: tuple[str, ...] = TENANT) -> Any:
    def read() -> ConversationBody:
        body = memory.parse(raw, api.kind, tenant)
        if isinstance(getattr(body, body.ITEMS), list) and getattr(body, body.ITEMS):
            namespace = namespace_of(getattr(body, "cache_salt", None), tenant)
            body.read_items(api.extend)
            body.read_tools(api.tools)
            memory.keep(body, tenant, namespace)
        return body

    return outcome(read, api)


# -- bodies of random conversations ------------------------------------------------------------------------------------

TEXTS = ["", "a", 'quote " \\ slash', "brackets ]}{[ ,", '"messages":[{', "ü€😀\n", '"cache_salt":"b"', "x" * 70]
ODD = [
    *(
        b'"messages":[1]',
        b'"messages":[]',
        b'"mess\\u0061ges":[{"role":"user","content":"z"}]',
        b'"n":1e400',
        b'"n":NaN',
    ),
    *(b'"seed":12345678901234567890123', b'"cache_salt":"b"', b'"cache\\u005fsalt":"b"', b'"cache_salt":""'),
    *(b'"metadata":{"messages":[{"a":[[1,{"b":"]"}]]}]}', b'"temperature":0.5', b'"temperature":"hot"'),
    *(b'"tools":[{"type":"function","function":{"name":"f"}}]', b'"tools":[{"type":"function","name":"f"}]'),
    *(b'"tools":[{"name":"f","input_schema":{}}]', b'"tools":[3]', b'"x":' + b"[" * 150 + b"]" * 150),
    *(b'"system":"s"', b'"stream":true', b'"x":' + b"[" * 250 + b"]" * 250),
]


def item(rng: random.Random, api: str) -> Any:
    text = rng.choice(TEXTS)
    part = {"type": "text", "text": text}
    arguments = rng.choice(['{"a": [1, {"b": null}]}', "{}", "no JSON"])
    call = {"id": "i", "function": {"name": "f", "arguments": arguments}}
    marked = {**part, "cache_control": {"type": "ephemeral"}}
    use = {"type": "tool_use", "id": "i", "name": "f", "input": {"k": text, "n": 1.0}}
    kinds: dict[str, list[Any]] = {
        "chat": [
            {"role": "user", "content": text},
            {"role": "user", "content": [part, part]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "i", "content": text, "unknown": [[], {}, 1.5, 10**30]},
        ],
        "messages": [
            {"role": "user", "content": text},
            {"role": "assistant", "content": [part, use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "i", "content": text}, marked]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": text, "signature": ""}]},
        ],
        "responses": [
            {"role": "user", "content": text},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments},
            {"type": "function_call_output", "call_id": "c", "output": text},
        ],
    }
    return rng.choice(kinds[api]) if rng.random() < 0.97 else rng.choice([{}, {"role": "nobody"}, 7, [], "text"])


def write(rng: random.Random, value: Any) -> str:
    separators = rng.choice([(",", ":"), (", ", ": "), (" ,\n", " :\t")])
    return json.dumps(value, ensure_ascii=rng.random() < 0.3, separators=separators)


class Bodies:
    """Bodies of one client, each made from the one before it."""

    def __init__(self, rng: random.Random, api: str) -> None:
        self.rng = rng
        self.api = api
        self.items: list[str] = [write(rng, item(rng, api))]
        self.before = ['"model":"m"', '"max_tokens":9']
        self.after: list[str] = []
        self.gap = rng.choice(["", " ", "\n  "])

    def next(self) -> bytes:
        """One that goes on, or goes wrong."""
        rng = self.rng
        self.items += [write(rng, item(rng, self.api)) for _ in range(rng.randrange(4))]
        match rng.randrange(12) if self.items else 11:
            case 0:
                at = rng.randrange(len(self.items))
                self.items[at] = write(rng, item(rng, self.api))
            case 1:
                del self.items[rng.randrange(len(self.items)) :]
            case 2:
                self.after = [rng.choice(ODD).decode()]
            case 3:
                self.before = [*self.before[:2], rng.choice(ODD).decode()]
            case 4:
                self.before, self.after = self.after, self.before
            case 5:
                self.after, self.before = [], ['"model":"m"', '"max_tokens":9']
        raw = self.write()
        match rng.randrange(14):
            case 0:
                return raw[: rng.randrange(len(raw))]
            case 1:
                at = rng.randrange(len(raw))
                return raw[:at] + rng.choice([b"]", b"}", b",", b'"', b"{", b"\\", b"1", b"\xff", b" "]) + raw[at:]
            case 2:
                at = rng.randrange(len(raw))
                return raw[:at] + raw[at + 1 :]
            case 3:
                return raw + rng.choice([b" ", b"x", b"{}", b"]"])
        return raw

    def write(self) -> bytes:
        field = "input" if self.api == "responses" else "messages"
        listed = f'"{field}":{self.gap}[{self.gap}' + f"{self.gap},{self.gap}".join(self.items) + f"{self.gap}]"
        return ("{" + f"{self.gap},{self.gap}".join([*self.before, listed, *self.after]) + "}").encode()


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
@example(seed=0)
def test_whatever_comes_is_read_as_if_it_came_alone(api: str, seed: int) -> None:
    rng = random.Random(seed)
    memory = BodyMemory(rng.choice([3000, 10**6]), smallest=0)
    clients = [Bodies(rng, api) for _ in range(2)]
    for _ in range(12):
        raw = rng.choice(clients).next()
        tenant = rng.choice([TENANT, TENANT, OTHER])
        assert remembering(memory, raw, APIS[api], tenant) == plainly(raw, APIS[api])
        memory.check_integrity()


@pytest.mark.parametrize("api", APIS)
def test_json_may_be_as_deep_as_in_a_body_that_comes_alone(api: str) -> None:
    memory = BodyMemory(10**6, smallest=0)
    client = Bodies(random.Random(1), api)
    client.items = ['{"role": "user", "content": "hello"}']
    assert remembering(memory, client.write(), APIS[api]) == plainly(client.write(), APIS[api])
    refused = []
    for depth in range(190, 205):
        client.items[1:] = ['{"role": "user", "content": "more", "x": ' + "[" * depth + "]" * depth + "}"]
        found = remembering(memory, client.write(), APIS[api])
        assert found == plainly(client.write(), APIS[api])
        refused.append(found[0] == 400)
    assert refused == sorted(refused)
    assert any(refused)
    assert not all(refused)


# -- what is saved -----------------------------------------------------------------------------------------------------


def said(count: int, *, first: str = "hello") -> list[Any]:
    return [{"role": "user" if i % 2 == 0 else "assistant", "content": f"{first} {i}"} for i in range(count)]


def body_of(messages: list[Any], **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, "tools": [TOOL], **more}).encode()


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture
def memory() -> BodyMemory:
    return BodyMemory(10**6, smallest=0)


def known(memory: BodyMemory, raw: bytes, tenant: tuple[str, ...] = TENANT) -> int:
    """How many of a body's messages were read before."""
    return len(memory.parse(raw, ChatBody, tenant)._bytes.read.items)


def test_what_was_read_is_not_read_again(memory: BodyMemory) -> None:
    first = through(memory, body_of(said(4)))
    second = through(memory, body_of(said(6)))
    assert [a is b for a, b in zip(first.read_items(None), second.read_items(None), strict=False)] == [True] * 4  # type: ignore[arg-type]
    assert first.read_tools(chat.read_tools) is second.read_tools(chat.read_tools)


def test_an_edit_is_read_anew_from_there(memory: BodyMemory) -> None:
    through(memory, body_of(said(6)))
    edited = said(8)
    edited[3]["content"] = "hullo 3"
    assert known(memory, body_of(edited)) == 3


def test_other_fields_around_the_same_messages_change_nothing_of_them(memory: BodyMemory) -> None:
    through(memory, body_of(said(6)))
    body = memory.parse(body_of(said(8), temperature=0.5), ChatBody, TENANT)
    assert len(body._bytes.read.items) == 6
    assert body.temperature == 0.5


def test_the_next_turn_takes_the_place_of_the_one_before(memory: BodyMemory) -> None:
    for count in range(2, 40, 2):
        through(memory, body_of(said(count)))
    last = len(body_of(said(38)))
    assert last < memory.size < 3 * last + 38 * 2000


def test_branches_are_kept_both(memory: BodyMemory) -> None:
    through(memory, body_of(said(4)))
    branches = [[*said(4), {"role": "user", "content": text}] for text in ("left", "right")]
    for branch in branches:
        through(memory, body_of(branch))
    assert [known(memory, body_of([*branch, *said(2)])) for branch in branches] == [5, 5]


def test_what_one_tenant_sent_is_nothing_to_another(memory: BodyMemory) -> None:
    through(memory, body_of(said(6)))
    assert known(memory, body_of(said(6))) == 6
    assert known(memory, body_of(said(6)), OTHER) == 0


def test_salts_of_one_tenant_have_nothing_in_common(memory: BodyMemory) -> None:
    mine = body_of(said(6), cache_salt="mine")
    through(memory, mine)
    assert known(memory, mine) == 6
    for other in (body_of(said(6)), body_of(said(6), cache_salt="other")):
        assert known(memory, other) == 0
    # A key that is only found once the body is parsed: it is not looked up, and not taken for none.
    through(memory, body_of(said(6)))
    assert known(memory, mine.replace(b"cache_salt", b"cache\\u005fsalt")) == 0


def test_counting_and_replying_do_not_mix(memory: BodyMemory) -> None:
    raw = json.dumps({"model": "m", "max_tokens": 5, "messages": said(6)}).encode()
    through(memory, raw, MESSAGES)
    assert not memory.parse(raw, CountBody, TENANT)._bytes.read.items


def test_memory_is_bounded_and_whoever_has_most_gives_way() -> None:
    memory = BodyMemory(60_000, smallest=0)
    through(memory, body_of(said(6)), tenant=OTHER)
    for number in range(40):
        through(memory, body_of(said(6, first=f"conversation {number}")))
        assert memory.size <= 60_000
        memory.check_integrity()
    assert known(memory, body_of(said(6)), OTHER) == 6
    assert known(memory, body_of(said(6, first="conversation 39"))) == 6
    assert known(memory, body_of(said(6, first="conversation 0"))) == 0


def test_a_reset_forgets_the_tenants_bodies(memory: BodyMemory) -> None:
    for tenant in (TENANT, OTHER):
        through(memory, body_of(said(6)), tenant=tenant)
    memory.reset(TENANT)
    assert known(memory, body_of(said(6))) == 0
    assert known(memory, body_of(said(6)), OTHER) == 6
    memory.reset()
    assert memory.size == 0


def test_a_body_that_was_refused_is_not_remembered(memory: BodyMemory) -> None:
    wrong = body_of([*said(4), {"role": "nobody"}])
    with pytest.raises(InvalidRequest):
        through(memory, wrong)
    assert memory.size == 0


def test_nothing_is_kept_without_memory() -> None:
    memory = BodyMemory(0, smallest=0)
    through(memory, body_of(said(4)))
    assert memory.size == 0
