"""What README.md and docs/get-started.md print under "Without a cluster", in an environment that has nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.pages import Block, blocks
from support.terminal import Terminal

ROOT = Path(__file__).parents[2]
#: Where the CPU build of torch may be, which is preferred to that of the index with its gigabytes of CUDA.
WHEELS = ROOT.parent / "shared" / "wheels"


def printed(page: str) -> Block:
    """The page's only block of commands without a cluster."""
    (block,) = (each for each in blocks(ROOT / page) if each.section == "Without a cluster")
    return block


@pytest.mark.timeout(900)
def test_the_printed_commands_install_all_that_a_run_with_a_killed_shard_needs(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    variables |= {"PATH": f"{tmp_path / 'venv' / 'bin'}:{variables['PATH']}", "COLUMNS": "200"}
    variables |= {"PIP_FIND_LINKS": str(WHEELS)} if WHEELS.exists() else {}
    with Terminal(ROOT, variables) as terminal:
        said = terminal.run(printed("docs/get-started.md").text)
    assert "examples/quickstart.yaml: valid" in said
    assert "quickstart: Succeeded" in said
    assert "trained   300,000 of 300,000 samples" in said
    (failure,) = (line for line in said.splitlines() if line.startswith("shard/1  "))
    assert "killed by SIGKILL" in failure
    assert failure.endswith("ReplaceShards")


def test_the_readme_prints_a_part_of_that() -> None:
    short, full = (list(printed(page).commands()) for page in ("README.md", "docs/get-started.md"))
    assert [command for command in full if command in short] == short
