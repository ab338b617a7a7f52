"""The examples with code of their own, as `cprjob run` trains them: two members are killed, and each leaves a model."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.runs import CPRJOB, incarnations, run

pytestmark = [pytest.mark.dist, pytest.mark.timeout(800)]

EXAMPLES = Path(__file__).parents[3] / "examples"


@dataclass(frozen=True)
class Example:
    """A manifest, the folder of its code, the script that writes its data, and what it must score in the end."""

    manifest: str
    code: str
    data: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    metric: str = "auc"
    least: float = 0.7


TABLE = {
    "own_model": Example("own_model/job.yaml", "own_model", ("clicks.py", "30000"), ("data.epochs=2",)),
    "two_labels": Example("two_labels/job.yaml", "two_labels", ("shop.py", "30000"), ("data.epochs=2",), "buy.auc"),
    "own_data": Example("own_data/job.yaml", "own_data", least=0.6),
    "wide": Example("wide.yaml", "features", ("visits.py", "12000", "298"), least=0.6),
}


@pytest.mark.parametrize("name", TABLE)
def test_example_survives_two_kills_and_leaves_a_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = TABLE[name]
    code = EXAMPLES / example.code
    monkeypatch.setenv("PYTHONPATH", str(code), prepend=":")
    settings = ["recovery.replay.mode=Auto", *example.settings]
    if example.data:
        script, *numbers = example.data
        subprocess.run([sys.executable, code / script, tmp_path / "data", *numbers], check=True)
        settings.append(f"data.uri={tmp_path}/data/")
    options = [word for setting in settings for word in ("--set", setting)]
    kills = ("--kill", "shard/1@0.3:POD", "--kill", "shard/0@0.6")
    status, report, output = run(tmp_path, EXAMPLES / example.manifest, *options, *kills)
    assert status == 0, output
    assert (incarnations(report)["shard/0"], incarnations(report)["shard/1"]) == (1, 2)
    assert [failure["tier"] for failure in report["failures"]] == ["NewPod", "InPlace"]
    assert (report["lost_row_updates"], report["budget"]["spent"]) == (0, 0)
    command = (*CPRJOB, "evaluate", "--workdir", str(tmp_path / "work"), "--json")
    score = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert (score | dict(score["metrics"]))[example.metric] > example.least
    subprocess.run((*CPRJOB, "export", "--workdir", tmp_path / "work", "--to", tmp_path / "model"), check=True)
    assert (tmp_path / "model" / "model.json").is_file()
