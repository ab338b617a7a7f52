"""From pydantic's JSON schema (2020-12) to the structural schema of a CustomResourceDefinition (OpenAPI 3.0)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cpr_operator.api.model import Model

Schema = dict[str, Any]

#: Keywords that the older dialect writes differently or does not have.
_TRANSLATED: Mapping[str, Callable[[Any], Schema]] = {
    "$defs": lambda _: {},
    "title": lambda _: {},
    "propertyNames": lambda _: {},
    "const": lambda value: {"enum": [value]},
    "description": lambda text: {"description": " ".join(text.split())},
    "exclusiveMinimum": lambda bound: {"minimum": bound, "exclusiveMinimum": True},
    "exclusiveMaximum": lambda bound: {"maximum": bound, "exclusiveMaximum": True},
}
#: Additional keywords that the older dialect needs, by type.
_FOR_TYPE: Mapping[str, Schema] = {
    "integer": {"format": "int64"},
    "array": {"x-kubernetes-list-type": "atomic"},
}


def structural(model: type[Model], *, defaults: bool) -> Schema:
    """The schema of one model; `defaults` says whether the API server shall fill in what is absent."""
    source = model.model_json_schema(by_alias=True, mode="validation")
    return _node(source, source.get("$defs", {}), defaults=defaults)


def stored(value: Any, schema: Schema) -> Any:
    """A JSON value as the API server stores it: without nulls, with defaults, and with numbers of the schema's type.

    What is not as the schema says stays as it is.
    """
    match value:
        case dict() if "properties" in schema:
            known = schema["properties"]
            stated = {name: each for name, each in value.items() if each is not None}
            defaults = {name: below["default"] for name, below in known.items() if "default" in below}
            return {name: stored(each, known.get(name, {})) for name, each in (defaults | stated).items()}
        case list() if "items" in schema:
            return [stored(each, schema["items"]) for each in value]
        case int() if schema.get("type") == "number" and not isinstance(value, bool):
            return float(value)
        case _:
            return value


def _node(node: Schema, definitions: Mapping[str, Schema], *, defaults: bool) -> Schema:
    """One node with all below it."""
    below = partial(_node, definitions=definitions, defaults=defaults)
    out: Schema = {}
    for keyword, value in _inlined(_without_null(node), definitions).items():
        match keyword, value:
            case "properties", _:
                out[keyword] = {name: below(child) for name, child in value.items()}
            case "items", _:
                out[keyword] = below(value)
            case "prefixItems", [first, *_]:  # a tuple here repeats one type
                out["items"] = below(first)
            case "additionalProperties", dict():
                out[keyword] = below(value)
            case "additionalProperties", _:  # the API server prunes what an object does not list
                pass
            case "default", _:
                if defaults and value is not None:
                    out[keyword] = _stated(value)
            case _:
                out |= _TRANSLATED.get(keyword, lambda same, name=keyword: {name: same})(value)
    return _FOR_TYPE.get(str(out.get("type")), {}) | out


def _inlined(node: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """The node with its reference resolved. Keywords beside the reference take precedence."""
    if "$ref" not in node:
        return node
    target = definitions[node["$ref"].removeprefix("#/$defs/")]
    return target | {key: value for key, value in node.items() if key != "$ref"}


def _without_null(node: Schema) -> Schema:
    """`X or null` as X, because an absent field means the same as null."""
    if "anyOf" not in node:
        return node
    kept: Schema
    (kept,) = (option for option in node["anyOf"] if option.get("type") != "null")
    return kept | {key: value for key, value in node.items() if key != "anyOf"}


def _stated(default: Any) -> Any:
    """A default without its absent fields."""
    if not isinstance(default, dict):
        return default
    return {name: _stated(value) for name, value in default.items() if value is not None}
