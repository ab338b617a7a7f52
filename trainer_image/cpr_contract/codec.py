"""Documents between operator and pods: frozen dataclasses to JSON and back.

A long job description is packed. It would not fit where a plain one is read, so pods get it in a file
(`env.SPEC_FILE`).
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import json
import types
import typing
import zlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, TypeVar

from cpr_contract.limits import AtMost

T = TypeVar("T")
#: Reads one plain JSON value.
Decoder = Callable[[Any], Any]

#: The maximum length of a description in plain JSON, in characters. A variable of a process holds at most 128 KiB.
MAX_PLAIN_LENGTH = 32 << 10
#: The maximum length of a new job's description. In a pod it shares 256 KiB of annotations with the roster.
MAX_LENGTH = 88 << 10
#: The maximum growth of a description during a job, as by the numbers of its members.
MAX_GROWTH = 4 << 10
#: The maximum size of an unpacked description.
_MAX_UNPACKED_BYTES = 16 << 20
_PACKED = "zlib:"


class ContractError(ValueError):
    """A document violates the contract; the message names the field."""


class _MismatchError(ValueError):
    """A value has a wrong type. The text begins with its path in the document."""


def to_json(document: Any, *, ascii_only: bool = True) -> str:
    """Return compact JSON with sorted keys: equal documents give equal bytes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), default=_fields, ensure_ascii=ascii_only)


def to_utf8(document: Any) -> bytes:
    """Return `to_json` in UTF-8. Escapes take up to three times the space; only lone surrogates stay escapes."""
    return to_json(document, ascii_only=False).encode("utf-8", "backslashreplace")


def within_limits(document: T) -> T:
    """Return the document with its lists shortened to the lengths that readers accept."""
    kind: Any = type(document)
    values = {name: getattr(document, name) for name, _ in _bounds(kind)}
    shorter = {name: bound.shortened(values[name]) for name, bound in _bounds(kind)}
    changed = {name: value for name, value in shorter.items() if value is not values[name]}
    return dataclasses.replace(document, **changed) if changed else document  # type: ignore[type-var]


@cache
def _bounds(kind: Any) -> tuple[tuple[str, AtMost], ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple(
        (name, bound)
        for name, hint in hints.items()
        for bound in getattr(hint, "__metadata__", ())
        if isinstance(bound, AtMost)
    )


def to_json_fields(document: Any) -> dict[str, str]:
    """Return each field of a dataclass as compact JSON, by name. Fields that many documents share are encoded once."""
    return {name: to_json(value) for name, value in _fields(document).items()}


def join_fields(fields: Mapping[str, str]) -> str:
    """Return the document with these encoded fields, in the bytes of `to_json`."""
    return "{" + ",".join(f'"{name}":{fields[name]}' for name in sorted(fields)) + "}"


def _fields(document: Any) -> dict[str, Any]:
    return {field.name: getattr(document, field.name) for field in dataclasses.fields(document)}


def to_dict(document: Any) -> Any:
    """Return a dataclass as plain JSON values, with field names as keys."""
    return dataclasses.asdict(document)


def from_json(cls: type[T], text: str | bytes) -> T:
    """Read a document; unknown keys are ignored, a missing or mistyped one raises `ContractError`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter: brackets in brackets
        raise ContractError(f"{cls.__name__} is not JSON: {error}") from error
    return from_dict(cls, value)


def from_dict(cls: type[T], value: Any) -> T:
    """Read a document from plain JSON values; raises `ContractError` as `from_json` does."""
    try:
        return typing.cast("T", _decoder(typing.cast("Any", cls))(value))
    except _MismatchError as error:
        raise ContractError(f"{cls.__name__}{error}") from error


@cache
def _decoder(kind: Any) -> Decoder:
    # Types are inspected once, so that a document costs one call per value. Only errors build paths.
    if dataclasses.is_dataclass(kind):
        return _dataclass_decoder(typing.cast("type", kind))
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return partial(_read_bounded, _decoder(parts[0]), parts[1])
    if origin in {types.UnionType, typing.Union}:
        read = _decoder(next(part for part in parts if part is not type(None)))
        return lambda value: None if value is None else read(value)
    if origin is typing.Literal:
        return partial(_read_literal, parts)
    if origin is not tuple:
        return partial(_read_enum if issubclass(kind, enum.Enum) else _read_scalar, kind)
    endless = parts[-1] is Ellipsis  # tuple[X, ...]
    return partial(_read_tuple, tuple(map(_decoder, parts[:1] if endless else parts)), endless)


def _dataclass_decoder(cls: type) -> Decoder:
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = tuple((each.name, _decoder(hints[each.name])) for each in dataclasses.fields(cls))
    missing = dataclasses.MISSING
    required = {
        each.name for each in dataclasses.fields(cls) if each.default is missing and each.default_factory is missing
    }

    def decode(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _MismatchError(f": expected an object, found {type(value).__name__}")
        arguments = {}
        for name, read in fields:
            if name in value:
                try:
                    arguments[name] = read(value[name])
                except _MismatchError as error:
                    raise _MismatchError(f".{name}{error}") from error
            elif name in required:
                raise _MismatchError(f".{name} is missing")
        return cls(**arguments)

    return decode


def _read_tuple(readers: tuple[Decoder, ...], endless: bool, value: Any) -> tuple[Any, ...]:  # noqa: FBT001 -- partial
    if len(_list(value)) != len(readers) and not endless:
        raise _MismatchError(f": expected {len(readers)} items, found {len(value)}")
    pairs = zip(readers * len(value) if endless else readers, value, strict=True)
    found = []
    for index, (read, item) in enumerate(pairs):
        try:
            found.append(read(item))
        except _MismatchError as error:
            raise _MismatchError(f"[{index}]{error}") from error
    return tuple(found)


def _read_bounded(read: Decoder, bound: AtMost, value: Any) -> Any:
    if len(_list(value)) > bound.items:
        raise _MismatchError(f": expected at most {bound.items} items, found {len(value)}")
    return read(value)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _MismatchError(f": expected a list, found {type(value).__name__}")
    return value


def _read_literal(values: tuple[Any, ...], value: Any) -> Any:
    if value not in values:
        raise _MismatchError(f": {value!r} is not one of {values}")
    return value


def _read_enum(kind: type[enum.Enum], value: Any) -> enum.Enum:
    try:
        return kind(value)
    except ValueError as error:
        raise _MismatchError(f": {error}") from error


def _read_scalar(kind: type, value: Any) -> Any:
    if type(value) is kind:
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _MismatchError(f": expected {kind.__name__}, found {value!r}")
    return value


def pack(text: str) -> str:
    """Return a description in plain JSON, packed if it is longer than `MAX_PLAIN_LENGTH`."""
    if len(text) <= MAX_PLAIN_LENGTH:
        return text
    return _PACKED + base64.b64encode(zlib.compress(text.encode())).decode()


def is_packed(text: str) -> bool:
    """Return whether `pack` compressed this text."""
    return text.startswith(_PACKED)


def unpack(text: str) -> str:
    """Return a description in plain JSON. Raises `ContractError` if it is packed and damaged."""
    if not is_packed(text):
        return text
    try:
        data = base64.b64decode(text.removeprefix(_PACKED), validate=True)
        unpacker = zlib.decompressobj()
        plain = unpacker.decompress(data, _MAX_UNPACKED_BYTES)
        if not unpacker.eof:
            raise ContractError(f"a packed description ends too early, or has more than {_MAX_UNPACKED_BYTES} bytes")
        return plain.decode()
    except (binascii.Error, zlib.error, UnicodeDecodeError) as error:
        raise ContractError(f"a packed description cannot be read: {error}") from error
