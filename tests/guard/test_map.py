"""docs/architecture.md is true: the files and folders that it names exist, and it has every thread."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRAINER = ROOT / "trainer_image" / "cpr_trainer"
TEXT = (ROOT / "docs" / "architecture.md").read_text("utf-8")
THREADS = TEXT.partition("\n## Threads\n")[2].partition("\n## ")[0]
SOURCES = sorted(path for folder in ("operator", "trainer_image") for path in (ROOT / folder).rglob("*.py"))


def paths() -> list[str]:
    """The files and folders that the page names. Three dots stand for those of the trainer image."""
    return sorted({each.removeprefix(".../") for each in re.findall(r"`([\w./]+/[\w./]*)`", TEXT) if each[0] != "/"})


def started(source: str) -> Iterator[str]:
    """The name of each thread and pool that a module starts; empty where it is no literal."""
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        if ast.unparse(call.func).rpartition(".")[2] in {"Thread", "ThreadPoolExecutor"}:
            given = [*call.args, *(each.value for each in call.keywords)]
            literals = [each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            yield literals[0] if literals else ""


@pytest.mark.parametrize("path", paths())
def test_what_it_names_is_there(path: str) -> None:
    assert (ROOT / path).exists() or (TRAINER / path).exists()


def test_it_names_every_module_that_starts_threads_and_every_thread() -> None:
    known = {path.relative_to(ROOT).as_posix(): set(started(path.read_text("utf-8"))) for path in SOURCES}
    known = {path: names for path, names in known.items() if names}
    assert len(known) > 15
    shown = {path: path.replace("trainer_image/cpr_trainer/", ".../") for path in known}
    assert [path for path in known if f"`{path}`" not in THREADS and f"`{shown[path]}`" not in THREADS] == []
    assert [name for name in set[str]().union(*known.values()) - {""} if f"`{name}`" not in THREADS] == []
