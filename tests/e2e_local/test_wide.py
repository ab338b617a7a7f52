"""`cprjob run` of the example with 300 features: a shard is killed, and the model has the bytes of a run without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.runs import exported, incarnations, run

pytestmark = [pytest.mark.dist, pytest.mark.timeout(800)]

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS, FURTHER = 12_000, 298


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("visits")
    script = EXAMPLES / "features" / "visits.py"
    subprocess.run([sys.executable, script, folder, str(ROWS), str(FURTHER)], check=True)
    return folder


def wide(folder: Path, visits: Path, *kills: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The report of the example, whose members are killed, and the files of its model."""
    folder.mkdir()
    struck = (word for kill in kills for word in ("--kill", kill))
    code, report, output = run(folder, EXAMPLES / "wide.yaml", "--set", f"data.uri={visits}/", *struck)
    assert code == 0, output
    assert report["samples"] == ROWS * 0.9
    return report, exported(folder)


def test_it_learns_and_ends_in_the_same_bytes_though_a_shard_is_killed(
    tmp_path: Path, visits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES / "features"), prepend=":")
    calm, model = wide(tmp_path / "calm", visits)
    assert len([name for name in model if name.startswith("tables/")]) == 200
    assert calm["auc"] > 0.6
    process, after = wide(tmp_path / "process", visits, "shard/1@0.3")
    assert [failure["tier"] for failure in process["failures"]] == ["InPlace"]
    pod, after_pod = wide(tmp_path / "pod", visits, "shard/1@0.3:POD")
    assert incarnations(pod) == {"shard/0": 1, "shard/1": 2, "trainer/0": 1}
    for report, files in ((process, after), (pod, after_pod)):
        assert report["lost_row_updates"] == 0
        assert files.keys() == model.keys()
        assert [name for name in files if files[name] != model[name]] == []
