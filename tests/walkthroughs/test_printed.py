"""The commands of README.md, docs/get-started.md and docs/tutorials for a machine without a cluster, as printed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from support.fresh import environment
from support.pages import Block, blocks
from support.terminal import Terminal

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
WIDE = {"COLUMNS": "200"}

pytestmark = pytest.mark.timeout(600)


def printed(page: str) -> Block:
    """Return the page's only block of commands without a cluster."""
    (block,) = (each for each in blocks(ROOT / page) if each.section == "Without a cluster")
    return block


def assert_replaced(output: str) -> None:
    """The report of a run has one failure: shard 1 was killed, and replaced."""
    (failure,) = (line for line in output.splitlines() if line.startswith("shard/1  "))
    assert "killed by SIGKILL" in failure
    assert failure.rstrip().endswith("ReplaceShards")


def test_get_started_installs_all_that_a_run_with_a_killed_shard_needs(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("operator", "trainer_image", "benchmarks", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name)
    with Terminal(tmp_path, environment(tmp_path) | WIDE) as terminal:
        output = terminal.run(printed("docs/get-started.md").text)
        alone = terminal.run("cprjob simulate || true\n")
        simulated = terminal.run("pip install ./benchmarks\ncprjob simulate --runs 10 --json\n")
    assert "examples/quickstart.yaml: valid" in output
    assert "quickstart: Succeeded" in output
    assert "trained   300,000 of 300,000 samples" in output
    assert_replaced(output)
    assert "cprjob simulate is not installed: pip install cprjob-bench" in alone
    assert '"cpr_closed_loop": {' in simulated


def test_readme_prints_a_part_of_get_started() -> None:
    short, full = (list(printed(page).commands()) for page in ("README.md", "docs/get-started.md"))
    assert [command for command in full if command in short] == short


def test_tutorial_leads_from_a_csv_through_a_killed_shard_to_a_model(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with Terminal(tmp_path, {**os.environ, "PATH": path} | WIDE) as terminal:
        output = [terminal.run(block.text) for block in blocks(TUTORIALS / "clicks.md")]
    inspected, checked, trained, scored, read = output
    assert "60,000 rows" in inspected
    assert "clicks.yaml: valid" in checked
    assert "108,000 samples in 844 steps from 54,000 rows" in checked
    assert "clicks: Succeeded" in trained
    assert_replaced(trained)
    assert "6,000 held-out samples: AUC 0.8" in scored
    assert "(3000, 8)" in read


def test_notebook_prints_its_saved_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    saved, fresh = (nbformat.read(TUTORIALS / "fit.ipynb", as_version=4) for _ in range(2))
    client = NotebookClient(fresh, timeout=500, kernel_name="python3", coalesce_streams=True)  # as a browser shows them
    client.execute(cwd=str(tmp_path))
    assert texts(fresh) == texts(saved)
    assert len(texts(saved)) > 3


def texts(notebook: nbformat.NotebookNode) -> list[str]:
    """Return what each cell of code printed; no cell returns a value or draws."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert {output.output_type for output in outputs} == {"stream"}
    return ["".join(output.text) for output in outputs]
