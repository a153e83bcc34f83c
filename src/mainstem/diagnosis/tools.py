"""What changed between the tools of two requests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from mainstem.diagnosis.causes import Cause, Place
from mainstem.diagnosis.difference import Difference, in_texts
from mainstem.diagnosis.prompt import ToolPart
from mainstem.diagnosis.texts import changes, common_prefix, same_json

_MAX_NAMES = 5


def compare_tools(
    before: Sequence[ToolPart], after: Sequence[ToolPart], *, canonical: bool = False
) -> Difference | None:
    """The first difference; None if there is none.

    Args:
        canonical: the order of keys in schemas does not matter, because whoever renders them sorts them.
    """
    index = next((i for i, pair in enumerate(zip(before, after, strict=False)) if not _same(*pair, canonical)), None)
    if index is None:
        if len(before) == len(after):
            return None
        index = min(len(before), len(after))
    olds, news = [tool.name for tool in before], [tool.name for tool in after]
    if olds == news:
        return _edited(before[index], after[index], index)
    gone, come = [name for name in olds if name not in news], [name for name in news if name not in olds]
    cause = _set_cause(gone, come)
    detail = (
        "; ".join(f"{word}: {_listed(names)}" for word, names in (("removed", gone), ("added", come)) if names)
        or f"order now: {_listed(news)}"
    )
    part = after[index].path if index < len(after) else before[index].path
    texts = tuple(_written(tools[index].definition) if index < len(tools) else "" for tools in (before, after))
    at = common_prefix(*texts)
    return in_texts(cause, Place.TOOLS, part, (texts[0], texts[1]), (at, at), detail=detail, index=index)


def _set_cause(gone: Sequence[str], come: Sequence[str]) -> Cause:
    if gone and come:
        return Cause.TOOLS_EDITED
    if come:
        return Cause.TOOLS_ADDED
    return Cause.TOOLS_REMOVED if gone else Cause.TOOLS_REORDERED


def _same(one: ToolPart, other: ToolPart, canonical: bool) -> bool:
    if one.name != other.name:
        return False
    written = _written(one.definition), _written(other.definition)
    return written[0] == written[1] or (canonical and same_json(*written) is not None)


def _edited(before: ToolPart, after: ToolPart, index: int) -> Difference:
    """The difference between two definitions of one tool."""
    texts = _written(before.definition), _written(after.definition)
    spelling = same_json(*texts)
    if spelling is not None:
        at = common_prefix(*texts)
        return in_texts(spelling, Place.TOOLS, after.path, texts, (at, at), detail=after.name, index=index)
    where, leaves = next(_leaves(before.definition, after.definition), ("", texts))
    cause = changes(*leaves)[0].cause or Cause.TOOLS_EDITED
    at = common_prefix(*leaves)
    return in_texts(cause, Place.TOOLS, after.path + where, leaves, (at, at), detail=after.name, index=index)


def _leaves(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, tuple[str, str]]]:
    """The smallest values that differ, with their paths: pairs of texts, or of JSON where they are of other types."""
    match before, after:
        case (dict(), dict()) if before.keys() == after.keys():
            for key in after:
                yield from _leaves(before[key], after[key], f"{path}.{key}")
        case (list(), list()) if len(before) == len(after):
            for i, pair in enumerate(zip(before, after, strict=True)):
                yield from _leaves(*pair, f"{path}[{i}]")
        case (str(), str()):
            if before != after:
                yield path, (before, after)
        case _:
            if (texts := (_written(before), _written(after)))[0] != texts[1]:
                yield path, texts


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
