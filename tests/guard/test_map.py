"""docs/architecture.md is true: its files, folders, classes and functions exist, and it has every thread."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Folders that the page leaves out of its paths.
BASES = ("operator/cpr_operator/", "trainer_image/cpr_trainer/")
TEXT = (ROOT / "docs" / "architecture.md").read_text("utf-8")
QUOTED = sorted(set(re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL))))
THREADS = TEXT.partition("\n## Threads\n")[2].partition("\n## ")[0]
SOURCES = sorted(path for folder in ("operator", "trainer_image") for path in (ROOT / folder).rglob("*.py"))


def started(source: str) -> Iterator[str]:
    """The name of each thread and pool that a module starts; empty where it is not a literal."""
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        if ast.unparse(call.func).rpartition(".")[2] in {"Thread", "ThreadPoolExecutor"}:
            given = [*call.args, *(each.value for each in call.keywords)]
            literals = [each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            yield literals[0] if literals else ""


@pytest.fixture(scope="module")
def words() -> set[str]:
    """The identifiers, words of strings and modules of the product, without comments."""
    found = {part for path in SOURCES for part in path.relative_to(ROOT).with_suffix("").parts}
    for path in SOURCES:
        for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline):
            if token.type in {tokenize.NAME, tokenize.STRING}:
                found.update(re.findall(r"[\w-]+", token.string))
    return found


@pytest.mark.parametrize("path", [each for each in QUOTED if re.fullmatch(r"[\w.]+/[\w./]*|\w+\.(py|toml)", each)])
def test_named_path_exists(path: str) -> None:
    assert any((ROOT / base / path).exists() for base in ("", *BASES))


def test_named_classes_and_functions_exist(words: set[str]) -> None:
    names = {part for each in QUOTED if re.fullmatch(r"[A-Za-z][\w.-]*", each) for part in each.split(".")}
    commands = {"lint-imports", "pyproject", "py", "toml"}
    assert len(names) > 30
    assert sorted(names - words - commands) == []


def test_page_has_every_thread() -> None:
    known = {path.relative_to(ROOT).as_posix(): set(started(path.read_text("utf-8"))) for path in SOURCES}
    known = {path: names for path, names in known.items() if names}
    assert len(known) > 15
    shown = {path: path.removeprefix(BASES[0]).removeprefix(BASES[1]) for path in known}
    assert [path for path in known if f"`{path}`" not in THREADS and f"`{shown[path]}`" not in THREADS] == []
    assert [name for name in set[str]().union(*known.values()) - {""} if f"`{name}`" not in THREADS] == []
