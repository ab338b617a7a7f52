"""What README.md and docs/get-started.md print under "Without a cluster", in an environment that has nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.fresh import environment
from support.pages import Block, blocks
from support.terminal import Terminal

ROOT = Path(__file__).parents[2]


def printed(page: str) -> Block:
    """The page's only block of commands without a cluster."""
    (block,) = (each for each in blocks(ROOT / page) if each.section == "Without a cluster")
    return block


def checkout(folder: Path) -> Path:
    """What the commands need of this one: they write beside it."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("operator", "trainer_image", "laboratory", "examples"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


@pytest.mark.timeout(600)
def test_the_printed_commands_install_all_that_a_run_with_a_killed_shard_needs(tmp_path: Path) -> None:
    with Terminal(checkout(tmp_path), environment(tmp_path) | {"COLUMNS": "200"}) as terminal:
        said = terminal.run(printed("docs/get-started.md").text)
        alone = terminal.run("cprjob simulate || true\n")
        simulated = terminal.run("pip install ./laboratory\ncprjob simulate --runs 10 --json\n")
    assert "examples/quickstart.yaml: valid" in said
    assert "quickstart: Succeeded" in said
    assert "trained   300,000 of 300,000 samples" in said
    (failure,) = (line for line in said.splitlines() if line.startswith("shard/1  "))
    assert "killed by SIGKILL" in failure
    assert failure.rstrip().endswith("ReplaceShards")
    assert "cprjob simulate is not installed: pip install cprjob-bench" in alone
    assert '"cpr_closed_loop": {' in simulated


def test_the_readme_prints_a_part_of_that() -> None:
    short, full = (list(printed(page).commands()) for page in ("README.md", "docs/get-started.md"))
    assert [command for command in full if command in short] == short
