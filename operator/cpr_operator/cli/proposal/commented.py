"""YAML with a reason behind each line.

A manifest is a tree of maps and lists. `Value` is a value on one line, `Block` a map or a list on lines of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpr_operator.api import yaml_text
from cpr_operator.api.terminal_text import printable

_INDENT = "  "


@dataclass(frozen=True, slots=True)
class Value:
    """A plain value, and the reason for it."""

    value: Any
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """A map or a list of nodes, and the reason for it. `notes` are lines of comment below it."""

    children: Mapping[str, Node] | Sequence[Value]
    reason: str = ""
    notes: Sequence[str] = ()


Node = Value | Block


def plain(node: Node) -> Any:
    """Return the document without its reasons."""
    if isinstance(node, Value):
        return node.value
    if isinstance(node.children, Mapping):
        return {name: plain(child) for name, child in node.children.items()}
    return [item.value for item in node.children]


def write(document: Block) -> str:
    """Return a map as YAML, with reasons as comments, so that `yaml_text` reads `plain(document)`."""
    return "".join(f"{line}\n" for line in _lines(document, ""))


def _lines(block: Block, indent: str) -> Iterator[str]:
    if isinstance(block.children, Mapping):
        for name, child in block.children.items():
            key = f"{indent}{yaml_text.write_inline(name)}:"
            if isinstance(child, Value):
                yield f"{key} {yaml_text.write_inline(child.value)}{_comment(child.reason)}"
            else:
                yield f"{key}{_comment(child.reason)}"
                yield from _lines(child, indent + _INDENT)
    else:
        for item in block.children:
            yield f"{indent}- {yaml_text.write_inline(item.value)}{_comment(item.reason)}"
    yield from (f"{indent}# {_one_line(note)}" for note in block.notes)


def _comment(reason: str) -> str:
    return f" # {_one_line(reason)}" if reason else ""


def _one_line(text: str) -> str:
    """Return text without line breaks, and without characters that a terminal would execute."""
    return " ".join(printable(text).split())
