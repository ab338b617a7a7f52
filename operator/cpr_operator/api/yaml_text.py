"""Reads and writes YAML as kubectl does, so that a text means the same job here and on a cluster.

kubectl converts YAML to JSON by sigs.k8s.io/yaml. PyYAML resolves scalars by other rules: `1e-3` and `1e3` are text,
`1:30` is a number, a date is not text, `y` is not a boolean, and the last of two equal keys wins. This module uses only
PyYAML's parser and resolves scalars itself; a test compares a table of scalars with kubectl's results.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import math
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

#: A manifest has about ten levels. Each takes a part of Python's stack in the parser and after it.
MAX_DEPTH = 100
#: The values in one text; each use of an alias counts. The largest manifest that a cluster accepts has a tenth.
MAX_VALUES = 1_000_000

_CORE = "tag:yaml.org,2002:"
#: The tag of a scalar without quotes and without a tag of its own.
_PLAIN = "plain"
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_INTEGER = re.compile(
    r"(?P<sign>[-+]?)(?:0[xX](?P<x>[0-9a-fA-F]+)|0[bB](?P<b>[01]+)|0[oO]?(?P<o>[0-7]+)|(?P<d>[0-9]+))"
)
_BASES = {"x": 16, "b": 2, "o": 8, "d": 10}
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF|nan|NaN|NAN)")
#: Integers beyond 64 bits become floats. Whole floats become integers on the way through JSON.
_INTEGERS = range(-(2**63), 2**64)
_EXACT = 1e21


class YamlTextError(yaml.YAMLError):
    """YAML that kubectl refuses; the message is one line."""


def read_documents(text: str | bytes) -> tuple[Any, ...]:
    """Return the documents of a text as JSON values, without empty ones. Raises YamlTextError.

    Keys are strings, and each use of an alias is a copy.
    """
    return tuple(each for each in _documents(text) if each is not None)


def read_value(text: str | bytes) -> Any:
    """Return the only document of a text; None if it is empty. Raises YamlTextError."""
    documents = list(islice(_documents(text), 2))
    if len(documents) > 1:
        raise YamlTextError("there are several documents; there must be one")
    return documents[0] if documents else None


def write_documents(*documents: Any) -> str:
    """Return JSON values as YAML that kubectl and this module parse to the same values."""
    return yaml.dump_all(documents, Dumper=_Writer, sort_keys=False, allow_unicode=True)


def write_inline(value: Any) -> str:
    """Return a JSON value as YAML on one line that kubectl and this module parse to the same value."""
    text: str = yaml.dump(
        value, Dumper=_Writer, sort_keys=False, allow_unicode=True, default_flow_style=True, width=10**6
    )
    text = text.removesuffix("...\n").removesuffix("\n")
    return text if len(text.splitlines()) <= 1 else json.dumps(value)  # text with line breaks


class _Composer(yaml.SafeLoader):
    """PyYAML's parser, which marks scalars without quotes and refuses deep nesting and cycles."""

    yaml_implicit_resolvers: dict[str | None, Any] = {}  # noqa: RUF012 -- PyYAML's own name and type

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._open: list[str | None] = []

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) and event.anchor in self._open:
            raise _at(event.start_mark, f"the value behind &{event.anchor} contains itself")
        if len(self._open) == MAX_DEPTH:
            raise _at(event.start_mark, f"values are nested in more than {MAX_DEPTH} levels")
        if not isinstance(event, yaml.AliasEvent):
            self.anchors.pop(event.anchor, None)  # a later anchor of the same name is another one
        self._open.append(None if isinstance(event, yaml.AliasEvent) else event.anchor)
        try:
            return super().compose_node(parent, index)
        finally:
            self._open.pop()


_Composer.add_implicit_resolver(_PLAIN, re.compile(""), None)


class _Writer(yaml.SafeDumper):
    """A writer that quotes text which kubectl or PyYAML would read as another value."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 -- no value is shared where it is read
        return True


_AMBIGUOUS = re.compile(f"(?:{_INTEGER.pattern}|{_FLOAT.pattern}|[yYnN]|[-+]?[0-9][0-9_.eE+-]*)\\Z")
_Writer.add_implicit_resolver("ambiguous", _AMBIGUOUS, None)


def _documents(text: str | bytes) -> Iterator[Any]:
    try:
        if isinstance(text, bytes):
            is_utf_16 = text.startswith((codecs.BOM_UTF16_BE, codecs.BOM_UTF16_LE))
            text = text.decode("utf-16" if is_utf_16 else "utf-8")
        composer = _Composer(_without_tabs(text))
        while composer.check_node():
            if (node := composer.get_node()) is not None:
                yield _Converter().value(node)
    except yaml.MarkedYAMLError as error:
        context = f" ({error.context})" if error.context else ""
        raise _at(error.problem_mark or error.context_mark, f"{error.problem}{context}") from None
    except yaml.reader.ReaderError as error:
        name = f"U+{error.character:04X}"
        raise YamlTextError(f"position {error.position + 1}: the character {name} is not allowed") from None
    except UnicodeDecodeError as error:
        raise YamlTextError(f"byte {error.start + 1}: the text is not {error.encoding.upper()}") from None


def _without_tabs(text: str) -> str:
    """Replace the tabs of indented JSON, which YAML refuses. Strings in JSON cannot contain tabs."""
    if "\t" in text and text.lstrip().startswith(("{", "[")):
        with contextlib.suppress(ValueError, RecursionError):
            json.loads(text)
            return text.replace("\t", " ")
    return text


class _Converter:
    """Converts the nodes of one document to JSON values."""

    def __init__(self) -> None:
        self._values = 0

    def value(self, node: Node) -> Any:
        self._values += 1
        if self._values > MAX_VALUES:
            raise _at(node.start_mark, f"there are more than {MAX_VALUES} values")
        match node:
            case ScalarNode():
                return _scalar(node)
            case SequenceNode(tag=tag) if tag == f"{_CORE}seq":
                return [self.value(each) for each in node.value]
            case MappingNode(tag=tag) if tag == f"{_CORE}map":
                return self._mapping(node)
            case _:
                raise _at(node.start_mark, f"the tag {node.tag} is not supported; remove it")

    def _mapping(self, node: MappingNode) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key, value in node.value:
            if isinstance(key, ScalarNode) and (key.tag, key.value) == (_PLAIN, "<<"):
                for source in value.value if isinstance(value, SequenceNode) else (value,):
                    if not isinstance(source, MappingNode):
                        raise _at(value.start_mark, "<< needs a map, or a list of maps")
                    merged = self._mapping(source) | merged  # the first one wins
            elif (name := _key(key)) in own:
                raise _at(key.start_mark, f"the key {name} is already there; remove one of the two")
            else:
                own[name] = self.value(value)
        return merged | own


def _key(node: Node) -> str:
    value = _scalar(node) if isinstance(node, ScalarNode) else None
    match value:
        case None:
            raise _at(node.start_mark, "a key must be text")
        case bool():
            return "true" if value else "false"
        case _:
            return str(value)


def _scalar(node: ScalarNode) -> str | float | bool | None:
    kind = node.tag.removeprefix(_CORE)
    if kind == "str":
        return _text(node)
    value = _plain(node)
    kinds = {"null": type(None), "bool": bool, "int": int, "float": int | float}
    if kind == _PLAIN or (kind in kinds and isinstance(value, kinds[kind])):
        return value
    if kind in kinds:
        raise _at(node.start_mark, f"{node.value!r} is no !!{kind}")
    raise _at(node.start_mark, f"the tag {node.tag} is not supported; remove it")


def _plain(node: ScalarNode) -> str | float | bool | None:
    """Return the value of text without quotes by the rules of go-yaml 2."""
    text: str = node.value
    if text in _WORDS:
        return _WORDS[text]
    if _NO_NUMBER.fullmatch(text):
        raise _at(node.start_mark, f"{text} is not a number that JSON has")
    digits = text.replace("_", "") if text[:1] != "_" else text
    if (found := _INTEGER.fullmatch(digits)) and len(digits) < 100:  # noqa: PLR2004 -- more digits than 64 bits have
        base = next(name for name in _BASES if found[name] is not None)
        integer = int(f"{found['sign']}{found[base]}", _BASES[base])
        if integer in _INTEGERS:
            return integer
    if _FLOAT.fullmatch(digits) and math.isfinite(number := float(digits)):
        return int(number) if number.is_integer() and abs(number) < _EXACT else number
    return _text(node)


def _text(node: ScalarNode) -> str:
    """Return the text with surrogate pairs, which are two escapes in JSON, as one character."""
    try:
        return str(node.value).encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise _at(node.start_mark, "the text has half a character: a surrogate without the other one") from None


def _at(mark: Any, problem: str) -> YamlTextError:
    where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
    return YamlTextError(where + problem)
