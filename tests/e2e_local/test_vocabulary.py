"""`cprjob run` with a vocabulary, of a file or built: with a kill and without, values have the same rows."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from support.runs import CPRJOB, run, small_job

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

ROWS, VALUES, LEAST = 20_000, 300, 60


def model(folder: Path, data: Path, vocabulary: dict[str, Any], *kills: str) -> dict[str, bytes]:
    """Train, export, and return all files but the one that names the anchor."""
    folder.mkdir()
    table = {"name": "user", "rows": VALUES + 1, "ids": "Vocabulary", "vocabulary": vocabulary}
    tables = [table | {"outOfRange": "DefaultRow"}]
    job = small_job(
        model={"embeddingDim": 4, "bottomMlp": [8, 4], "topMlp": [8, 1], "tables": tables},
        data={
            "format": "CSV",
            "uri": str(data / "rows.csv"),
            "columns": {"labels": ["click"], "categories": ["user"]},
            "epochs": 2,
            "batchSize": 64,
        },
        trainers={"replicas": 1, "workers": 1},
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


@pytest.fixture
def users(tmp_path: Path) -> list[str]:
    """The user of each row of tmp_path/rows.csv."""
    random = np.random.default_rng(0)
    found = [f"u{user}" for user in random.integers(0, VALUES + 50, ROWS)]
    lines = (f"{click},{user}\n" for click, user in zip(random.integers(0, 2, ROWS), found, strict=True))
    (tmp_path / "rows.csv").write_text("click,user\n" + "".join(lines), "utf-8")
    return found


@pytest.mark.usefixtures("users")
def test_a_killed_shard_leaves_the_model_of_a_run_without(tmp_path: Path) -> None:
    text = "".join(f"u{value}\n" for value in range(VALUES))
    (tmp_path / "users.txt").write_text(text, "utf-8")
    vocabulary = {"uri": str(tmp_path / "users.txt")}
    calm = model(tmp_path / "calm", tmp_path, vocabulary)
    assert calm["vocabularies/user.txt"] == text.encode()
    assert model(tmp_path / "struck", tmp_path, vocabulary, "shard/1@0.2:POD") == calm


def test_whoever_is_killed_a_vocabulary_is_built_once(tmp_path: Path, users: list[str]) -> None:
    vocabulary = {"build": {"minCount": LEAST}}
    calm = model(tmp_path / "calm", tmp_path, vocabulary)
    counts = Counter(users)
    frequent = sorted((user for user in counts if counts[user] >= LEAST), key=lambda user: (-counts[user], user))
    assert 50 < len(frequent) < VALUES
    assert calm["vocabularies/user.txt"].decode().splitlines() == frequent
    assert model(tmp_path / "shard", tmp_path, vocabulary, "shard/1@0.2:POD") == calm
    # A lone trainer goes back to its last save, and shards do not: the model is another one, of the same values.
    other = model(tmp_path / "trainer", tmp_path, vocabulary, "trainer/0@0.2:POD")
    assert other["vocabularies/user.txt"] == calm["vocabularies/user.txt"]
