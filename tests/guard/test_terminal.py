"""The shell that runs the pages' commands: a command that fails is never passed over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.harness.waiting import until
from support.terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with Terminal(tmp_path, {"PATH": os.environ["PATH"], "GIVEN": "yes"}) as one:
        yield one


def test_variables_and_the_folder_last_from_one_block_to_the_next(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run("NODE=$(printf '%s' worker2)\n")
    assert "worker2 yes" in terminal.run('printf "%s" "$NODE $GIVEN" >file\ncat file\n')
    assert (tmp_path / "file").read_text("utf-8") == "worker2 yes"


@pytest.mark.parametrize("wrong", ["false", "false | cat", 'echo "$NOBODY_SET_THIS"', "no-such-command"])
def test_the_first_command_that_fails_is_the_last(terminal: Terminal, tmp_path: Path, wrong: str) -> None:
    with pytest.raises(AssertionError, match="before"):
        terminal.run(f"echo before\n{wrong}\ntouch after\n")
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_reads_its_input_does_not_swallow_the_next_block(terminal: Terminal) -> None:
    terminal.run("cat\n")
    assert "next" in terminal.run("echo next\n")


def test_ctrl_c_ends_what_would_run_for_ever(terminal: Terminal, tmp_path: Path) -> None:
    terminal.enter("echo watching\ntouch begun\nsleep 1000\n")
    until("the commands have begun", (tmp_path / "begun").exists, 10)
    assert "watching" in terminal.interrupt()
