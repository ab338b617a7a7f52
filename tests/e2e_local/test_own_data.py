"""`cprjob run` with data from code of one's own: the example, killed twice and not at all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.runs import CPRJOB, incarnations, run

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_data"
EXACT = (
    *("--set", "trainers.replicas=1"),  # sums of several trainers are added in the order in which they come
    *("--set", "trainers.workers=1"),  # each run would measure for itself
    *("--set", "recovery.replay.mode=Auto"),
)


def model(folder: Path, *kills: str) -> dict[str, bytes]:
    """Train the example, and return its model's files by name."""
    folder.mkdir()
    code, report, output = run(
        folder, EXAMPLE / "job.yaml", *EXACT, *(word for kill in kills for word in ("--kill", kill))
    )
    assert code == 0, output
    assert (report["phase"], report["samples"]) == ("Succeeded", 90_000)
    assert report["budget"]["spent"] == 0, output
    assert len(report["failures"]) == len(kills)
    assert incarnations(report)["shard/1"] == 1 + sum(kill.endswith(":POD") for kill in kills)
    subprocess.run((*CPRJOB, "export", "--workdir", folder / "work", "--to", folder / "model"), check=True)
    return {
        str(path.relative_to(folder / "model")): path.read_bytes() for path in (folder / "model").rglob("*.safetensors")
    }


def test_two_kills_leave_the_model_of_a_run_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLE), prepend=":")
    calm, struck = model(tmp_path / "calm"), model(tmp_path / "struck", "shard/1@0.1:POD", "trainer/0@0.3")
    assert {"dense.safetensors", "tables/tags.safetensors"} <= calm.keys()
    assert struck == calm
