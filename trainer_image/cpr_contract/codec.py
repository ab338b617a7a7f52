"""Frozen dataclasses to JSON and back: every document that crosses the border between operator and pods."""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


class ContractError(ValueError):
    """A document does not have the shape that the contract gives it; the message names the field."""


def to_json(document: Any) -> str:
    """Compact JSON with sorted keys: equal documents give equal bytes."""
    return _dumps(document)


def to_json_fields(document: Any) -> dict[str, str]:
    """Each field of a dataclass as compact JSON, by its name: what many documents share is encoded once."""
    return {name: _dumps(value) for name, value in _fields(document).items()}


def join_fields(fields: Mapping[str, str]) -> str:
    """The document whose fields these are, in the bytes that `to_json` gives."""
    return "{" + ",".join(f'"{name}":{fields[name]}' for name in sorted(fields)) + "}"


def _dumps(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_fields)


def _fields(document: Any) -> dict[str, Any]:
    return {field.name: getattr(document, field.name) for field in dataclasses.fields(document)}


def to_dict(document: Any) -> Any:
    """A dataclass as plain JSON values, field names as keys."""
    return dataclasses.asdict(document)


def from_json(cls: type[T], text: str | bytes) -> T:
    """Read a document; unknown keys are ignored, a missing or mistyped one raises `ContractError`."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ContractError(f"{cls.__name__} is not JSON: {error}") from error
    return from_dict(cls, value)


def from_dict(cls: type[T], value: Any) -> T:
    """Read a document from plain JSON values; raises `ContractError` as `from_json` does."""
    return typing.cast("T", _decode(cls, value, cls.__name__))


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(typing.cast("type", kind), value, where)
    origin = typing.get_origin(kind)
    if origin in {types.UnionType, typing.Union}:
        inner = [a for a in typing.get_args(kind) if a is not type(None)]
        return None if value is None else _decode(inner[0], value, where)
    if origin is tuple:
        return _decode_tuple(typing.get_args(kind), value, where)
    if origin is typing.Literal:
        if value not in typing.get_args(kind):
            raise ContractError(f"{where}: {value!r} is not one of {typing.get_args(kind)}")
        return value
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(value)
        except ValueError as error:
            raise ContractError(f"{where}: {error}") from error
    return _decode_scalar(kind, value, where)


def _decode_dataclass(cls: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ContractError(f"{where}: expected an object, found {type(value).__name__}")
    arguments = {}
    for field in dataclasses.fields(cls):
        if field.name in value:
            arguments[field.name] = _decode(_hints(cls)[field.name], value[field.name], f"{where}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ContractError(f"{where}.{field.name} is missing")
    return cls(**arguments)


def _decode_tuple(parts: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ContractError(f"{where}: expected a list, found {type(value).__name__}")
    if len(parts) == 2 and parts[1] is Ellipsis:  # noqa: PLR2004 -- tuple[X, ...]
        return tuple(_decode(parts[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if len(parts) != len(value):
        raise ContractError(f"{where}: expected {len(parts)} items, found {len(value)}")
    return tuple(_decode(part, item, f"{where}[{i}]") for i, (part, item) in enumerate(zip(parts, value, strict=True)))


def _decode_scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ContractError(f"{where}: expected {kind.__name__}, found {value!r}")
    return value
