"""Rendering that goes on where an earlier prompt stopped: a template is not run over messages that it has written.

A template is a deterministic program. Its loop over the messages can begin at message k with the text that the first k
made in an earlier run, if then

- the loop begins with the same values in all variables;
- in the earlier run the first k messages were written without a look at a message that is another now, at the number of
  messages, or at whether there are more of them than there were.

So a template is given its messages in a list that notes what is read of them. Where that cannot be told (messages
printed as a list, variables of a kind that cannot be compared) the loop is run from its beginning; whatever else goes
wrong, the template is run over plain lists, as if this did not exist. What comes before and after such loops is always
run. It knows templates; it knows nothing of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

from jinja2.runtime import LoopContext, Macro, Undefined
from jinja2.sandbox import safe_range
from jinja2.utils import missing

from mainstem.tokens.conversation import Definition
from mainstem.tokens.program import TemplateProgram, Variables, program, refuse

_SCALARS = (str, int, float, bool, type(None))
# They keep a count of their own from one message to the next.
_STATEFUL = ("cycler", "joiner")


# That templates may hold, and that are the same in every run.
_FUNCTIONS = (refuse, safe_range)
_SHORT = 64


class _Point(NamedTuple):
    """The moment before a loop takes its next message.

    Attributes:
        size: characters that the loop has written.
        read: the last message that it has read, by its index; -1 for none.
        values: of each namespace, in the order in which they were made.
    """

    size: int
    read: int
    values: tuple[dict[str, Any], ...]


class _Record(NamedTuple):
    """A loop that was run: the state that it began with, where its text begins, and a point for each message.

    Attributes:
        points: there are fewer than messages, if something was read that tells how many there are.
    """

    state: tuple[Any, ...]
    start: int
    points: list[_Point]


class Rendered(NamedTuple):
    """A prompt's text, and what its template did to write it, loop by loop."""

    text: str
    loops: tuple[_Record, ...] = ()


def render(
    source: str,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
    *,
    earlier: Rendered = Rendered(""),  # noqa: B008 - immutable
    common: int = 0,
) -> Rendered:
    """What a template makes of messages.

    Args:
        source: of the template.
        messages: that it is given.
        variables: whatever else it is given.
        earlier: what it made of messages and the same variables.
        common: how many of the first messages are the same.

    Raises:
        Exception: whatever the template raises.
    """
    resumable = _resumable(source)
    if resumable is not None:
        try:
            return _Run(messages, variables, earlier, common).go(resumable)
        except Exception:  # the template's own complaint is made again below, and is then its answer
            pass
    return Rendered("".join(program(source).write({**variables, "messages": messages})))


@lru_cache(maxsize=64)
def _resumable(source: str) -> TemplateProgram | None:
    if any(name in source for name in _STATEFUL):
        return None
    return TemplateProgram(source, (_LoopContext, _enter))


class _Run:
    """One run of a template."""

    def __init__(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], earlier: Rendered, common: int
    ) -> None:
        self.messages = messages
        self.earlier = earlier
        self.common = common
        self.out: list[str] = []
        self.size = 0
        self.read = -1
        self.read_end = False
        self.records: list[_Record] = []
        self.namespaces: list[Variables] = []
        self._given = {**variables, "messages": _Messages(self, 0), "namespace": self._namespace}
        self._pieces: Any = None

    def go(self, template: TemplateProgram) -> Rendered:
        self._pieces = template.write(self._given)
        for piece in self._pieces:
            self.write(piece)
        return Rendered("".join(self.out), tuple(self.records))

    def write(self, text: str) -> None:
        self.out.append(text)
        self.size += len(text)

    def state(self) -> tuple[Any, ...]:
        """All that the template knows at this moment, in a form that can be compared with that of another run."""
        frame = self._pieces.gi_frame
        local = frame.f_locals
        names = sorted(name for name in local if name.startswith("l_"))
        known = [(name, self._frozen(local[name])) for name in names]
        # Where it is in the template is a part of it.
        return (frame.f_lasti, *known, *[self._frozen(namespace) for namespace in self.namespaces])

    def _namespace(self, *args: Any, **kwargs: Any) -> Variables:
        made = Variables(*args, **kwargs)
        self.namespaces.append(made)
        return made

    def _frozen(self, value: Any) -> Any:
        if type(value) in _SCALARS:
            return type(value), value
        if value is missing:
            return "missing"
        if isinstance(value, _Messages):
            return "messages", value.offset
        if isinstance(value, Undefined):
            return "undefined"
        if isinstance(value, Macro):
            return "macro", value._func.__code__
        if type(value) is Variables:
            values = tuple((name, self._frozen_in(item)) for name, item in _values(value).items())
            return "namespace", [known is value for known in self.namespaces].index(True), values
        for name, given in self._given.items():
            if value is given:
                return "given", name
        if type(value) is dict:
            return "dict", json.dumps(value)
        if type(value) is Definition:
            return "dict", value.as_json()
        if any(value is function for function in _FUNCTIONS):
            return "function", value
        if type(value) is list and len(value) <= _SHORT and all(type(item) in _SCALARS for item in value):
            # A template cannot change a list.
            return "list", tuple((type(item), item) for item in value)
        return object()  # like no other

    def _frozen_in(self, value: Any) -> Any:
        return (type(value), value) if type(value) in _SCALARS else object()


class _Messages(Sequence[Any]):
    """The messages from one on, as a template sees them. Notes what is read."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, run: _Run, offset: int) -> None:
        self.run = run
        self.offset = offset

    def __getitem__(self, key: Any) -> Any:
        run = self.run
        if type(key) is int and 0 <= key < len(run.messages) - self.offset:
            at = key + self.offset
            run.read = max(run.read, at)
            return run.messages[at]
        if isinstance(key, slice) and key.stop is None and key.step in (None, 1) and (key.start or 0) >= 0:
            return _Messages(run, self.offset + (key.start or 0))
        run.read_end = True
        return list(run.messages[self.offset :])[key]

    def __len__(self) -> int:
        self.run.read_end = True
        return max(0, len(self.run.messages) - self.offset)

    def __bool__(self) -> bool:
        return next(self.rest(0), missing) is not missing

    def __iter__(self) -> Iterator[Any]:
        return self.rest(0)

    def rest(self, first: int) -> Iterator[Any]:
        """The messages after so many."""
        run = self.run
        for at in range(self.offset + first, len(run.messages)):
            run.read = max(run.read, at)
            yield run.messages[at]
        run.read_end = True

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("it cannot be told what this reads")

    def __repr__(self) -> NoReturn:
        raise TypeError("it cannot be told what this reads")


class _Loop:
    """One loop over messages: passes over what an earlier run has written, and records the rest."""

    def __init__(self, messages: _Messages) -> None:
        self.messages = messages
        self._run = run = messages.run
        state = run.state()
        number = len(run.records)
        before = run.earlier.loops[number] if number < len(run.earlier.loops) else None
        points: list[_Point] = []
        if before is not None and before.state == state:
            points = self._valid(before.points)
        self.done = max(0, len(points) - 1)
        self._record = _Record(state, run.size, points[: self.done])
        self._recording = True
        run.records.append(self._record)
        run.read, run.read_end = -1, False
        self._namespaces = list(run.namespaces)
        if before is not None and self.done:
            self._pass_over(before, points[self.done])

    def _valid(self, points: list[_Point]) -> list[_Point]:
        run = self._run
        count = min(len(points), len(run.messages) - self.messages.offset)
        while count and points[count - 1].read >= run.common:
            count -= 1
        return points[:count]

    def _pass_over(self, before: _Record, point: _Point) -> None:
        run = self._run
        run.write(run.earlier.text[before.start : before.start + point.size])
        run.read = point.read
        for namespace, values in zip(self._namespaces, point.values, strict=True):
            _values(namespace).clear()
            _values(namespace).update(values)

    def record(self) -> None:
        """Note the moment before the next message."""
        run = self._run
        values = tuple([dict(_values(namespace)) for namespace in self._namespaces])
        plain = all(type(value) in _SCALARS for of_one in values for value in of_one.values())
        self._recording = self._recording and plain and not run.read_end
        if self._recording:
            self._record.points.append(_Point(run.size - self._record.start, run.read, values))

    def __iter__(self) -> Iterator[Any]:
        rest = self.messages.rest(self.done)
        while True:
            self.record()
            message = next(rest, missing)
            if message is missing:
                return
            yield message

    def __len__(self) -> int:
        return len(self.messages)


class _LoopContext(LoopContext):
    """`loop` in a template, which may begin in the middle."""

    def __init__(self, iterable: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(iterable, *args, **kwargs)
        self._loop = iterable if isinstance(iterable, _Loop) else None
        if self._loop is not None:
            done, messages = self._loop.done, self._loop.messages
            self._iterator = messages.rest(done)
            self.index0 = done - 1
            if done:
                self._current = messages.run.messages[messages.offset + done - 1]

    def __next__(self) -> Any:
        if self._loop is not None:
            self._loop.record()
        return super().__next__()

    def changed(self, *value: Any) -> bool:
        if self._loop is not None:
            raise TypeError("it cannot be told what this was at an earlier message")
        return super().changed(*value)


def _enter(value: Any) -> Any:
    """What a loop goes over, if it would go over the messages."""
    return _Loop(value) if isinstance(value, _Messages) else value


def _values(namespace: Variables) -> dict[str, Any]:
    values: dict[str, Any] = namespace._Namespace__attrs
    return values
