"""Small files, written so that a reader sees the old or the new content, never a part."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replace the file at `path`; its folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    draft.replace(path)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace the file by `value` as indented JSON, for people to read."""
    write_atomically(path, json.dumps(value, indent=2).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in the file; None if there is no such file."""
    try:
        value: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return value
