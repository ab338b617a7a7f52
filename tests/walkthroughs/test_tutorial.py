"""What docs/tutorials prints, done as its reader does it: the commands in a shell, the notebook in a kernel."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from support.pages import blocks
from support.terminal import Terminal

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"

pytestmark = pytest.mark.timeout(600)


def test_its_commands_lead_from_a_csv_through_a_killed_shard_to_a_model(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with Terminal(tmp_path, {**os.environ, "PATH": path, "COLUMNS": "200"}) as terminal:
        said = [terminal.run(block.text) for block in blocks(TUTORIALS / "clicks.md")]
    inspected, checked, trained, scored, read = said
    assert "60,000 rows" in inspected
    assert "clicks.yaml: valid" in checked
    assert "108,000 samples in 844 steps from 54,000 rows" in checked
    assert "clicks: Succeeded" in trained
    (failure,) = (line for line in trained.splitlines() if line.startswith("shard/1  "))
    assert "killed by SIGKILL" in failure
    assert failure.rstrip().endswith("ReplaceShards")
    assert "6,000 held-out samples: AUC 0.8" in scored
    assert "(3000, 8)" in read


def test_the_notebook_prints_what_is_saved_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    saved = nbformat.read(TUTORIALS / "fit.ipynb", as_version=4)
    fresh = nbformat.read(TUTORIALS / "fit.ipynb", as_version=4)
    client = NotebookClient(fresh, timeout=500, kernel_name="python3", coalesce_streams=True)  # as a browser shows them
    client.execute(cwd=str(tmp_path))
    assert printed(fresh) == printed(saved)
    assert len(printed(saved)) > 3


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    """What each cell of code wrote, which says all: none returns a value or draws."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert {output.output_type for output in outputs} == {"stream"}
    return ["".join(output.text) for output in outputs]
