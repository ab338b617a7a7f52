"""`cprjob run` with a vocabulary: with the kill of a shard's pod and without, the model is the same."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml

from support.runs import CPRJOB, run, small_job

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

ROWS, VALUES = 20_000, 300


def model(folder: Path, data: Path, *kills: str) -> dict[str, bytes]:
    """Train, export, and return all files but the one that names the anchor."""
    folder.mkdir()
    tables = [{"name": "user", "rows": VALUES + 1, "ids": "Vocabulary", "outOfRange": "DefaultRow"}]
    tables[0]["vocabulary"] = {"uri": str(data / "users.txt")}
    job = small_job(
        model={"embeddingDim": 4, "bottomMlp": [8, 4], "topMlp": [8, 1], "tables": tables},
        data={
            "format": "CSV",
            "uri": str(data / "rows.csv"),
            "columns": {"labels": ["click"], "categories": ["user"]},
            "epochs": 2,
            "batchSize": 64,
        },
        trainers={"replicas": 1},
        recovery={"replay": {"mode": "Required"}},
    )
    (folder / "job.yaml").write_text(yaml.safe_dump(job), "utf-8")
    code, report, output = run(folder, folder / "job.yaml", *(word for kill in kills for word in ("--kill", kill)))
    assert code == 0, output
    assert len(report["failures"]) == len(kills)
    command = (*CPRJOB, "export", "--workdir", folder / "work", "--to", folder / "model")
    subprocess.run(command, check=True)
    found = (path for path in (folder / "model").rglob("*") if path.is_file() and path.name != "model.json")
    return {path.relative_to(folder / "model").as_posix(): path.read_bytes() for path in found}


def test_a_killed_shard_leaves_the_model_of_a_run_without(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    users, clicks = random.integers(0, VALUES + 50, ROWS), random.integers(0, 2, ROWS)
    lines = (f"{click},u{user}\n" for click, user in zip(clicks, users, strict=True))
    (tmp_path / "rows.csv").write_text("click,user\n" + "".join(lines), "utf-8")
    text = "".join(f"u{value}\n" for value in range(VALUES))
    (tmp_path / "users.txt").write_text(text, "utf-8")
    calm = model(tmp_path / "calm", tmp_path)
    assert calm["vocabularies/user.txt"] == text.encode()
    assert model(tmp_path / "struck", tmp_path, "shard/1@0.5:POD") == calm
