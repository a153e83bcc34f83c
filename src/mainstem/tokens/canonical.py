"""JSON schemas in one order of keys, so that a tool renders the same however its client orders them.

Key order means nothing in a schema, and clients change it: some build their schemas anew for every request, some pass
them through languages whose maps have no order. The order of lists is kept, since it may mean something. Values are
never changed. It knows nothing of templates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The order in which people mostly write them, and in which models have mostly seen them; others follow by name.
_FIRST = (
    *("$schema", "$id", "$ref", "type", "title", "description", "format", "enum", "const", "default", "items"),
    *("properties", "required", "additionalProperties"),
)
_LAST = ("$defs", "definitions")
_RANKS = {key: rank - len(_FIRST) for rank, key in enumerate(_FIRST)} | dict.fromkeys(_LAST, 1)

_ONE = frozenset(
    {
        *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"),
        *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
    }
)
_MANY = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_NAMED = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})


def canonical_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with its keys, and those of every schema in it, in one order.

    Properties come in the order of `required`, then by name: a list is the one place where an author can say which
    argument a model should write first. Names everywhere are ordered by code point.
    """
    keys = sorted(schema, key=lambda key: (_RANKS.get(key, 0), key))
    return {key: _value(key, schema[key], schema) for key in keys}


def _value(key: str, value: Any, schema: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        if key in _NAMED:
            names = _property_order(value, schema) if key == "properties" else sorted(value)
            return {name: _subschema(value[name]) for name in names}
        return canonical_schema(value) if key in _ONE else _data(value)
    if isinstance(value, list):
        return [_subschema(item) for item in value] if key in _MANY else _data(value)
    return value


def _subschema(value: Any) -> Any:
    # `true` and `false` are schemas too.
    return canonical_schema(value) if isinstance(value, Mapping) else _data(value)


def _property_order(properties: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    required = schema.get("required")
    listed = required if isinstance(required, list) else []
    first = dict.fromkeys(name for name in listed if isinstance(name, str) and name in properties)
    return [*first, *sorted(name for name in properties if name not in first)]


def _data(value: Any) -> Any:
    """A value that is no schema, such as a default or an example."""
    if isinstance(value, Mapping):
        return {key: _data(value[key]) for key in sorted(value)}
    return [_data(item) for item in value] if isinstance(value, list) else value
