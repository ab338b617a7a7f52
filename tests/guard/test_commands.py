"""Every mention of a command of `cprjob` in the documentation, and in what it prints, is one that it has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from cpr_operator.api.status import Anchor, Status
from cpr_operator.cli.app import app
from cpr_operator.cli.command_options import ClusterOptions
from cpr_operator.cli.report import next_local_step, next_step_on_cluster
from support.pages import DOCUMENTS

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for folder in ("operator", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
COMMAND: Any = get_command(app)
#: In code of a page, or behind "`" or a colon in a message.
MENTION = re.compile(r"(?:^ {4}|[`$(:] ?|\| )(?:kubectl )?cprjob((?: [^`|\n]+)+)", re.MULTILINE)
ANCHOR = Anchor(key="uid/anchor", digest="d", generation=1, step=1, samples=1)


def mentions(text: str) -> Iterator[list[str]]:
    """The words after the program's name, of each mention, up to the end of its line."""
    for found in MENTION.finditer(text):
        words = found[1].replace("\\", " ").split()
        if words and re.fullmatch(r"[a-z]+|--?[a-z-]+", words[0]):
            yield words


def wrong(words: list[str]) -> str:
    """Return the unknown parts of a mention; empty if there are none."""
    command = COMMAND
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return words[0]
        command, words = command.commands[words[0]], words[1:]
    known = {option for parameter in command.params for option in parameter.opts} | {"-h", "--help"}
    named = {option for word in words for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", word)}
    return ", ".join(sorted(named - known))


@pytest.mark.parametrize(("texts", "least"), [(DOCUMENTS, 50), (SOURCES, 10)], ids=["pages", "messages"])
def test_mentioned_commands_exist(texts: list[Path], least: int) -> None:
    found = [(path, words) for path in texts for words in mentions(path.read_text("utf-8"))]
    assert len(found) > least
    assert [each for each in found if wrong(each[1])] == []


def test_pages_mention_each_command() -> None:
    found = {words[0] for page in DOCUMENTS for words in mentions(page.read_text("utf-8"))}
    assert set(COMMAND.commands) - found <= {"version"}


def test_each_next_step_is_a_command() -> None:
    kube = ClusterOptions(Path("/k"), "c", "n")
    for status in (
        Status(),
        Status(phase="Suspended"),
        Status(phase="Failed"),
        Status(phase="Succeeded", result=ANCHOR),
    ):
        there = next_step_on_cluster(status, "job", kube.text)
        (words,) = mentions(there)
        command = COMMAND
        context = command.commands[words[0]].make_context(words[0], words[1:])
        assert context.params["namespace"] == "n"
        assert context.params["context"] == "c"
        for found in mentions(next_local_step(status, Path("/work"))):
            assert wrong(found) == ""
