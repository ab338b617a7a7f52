"""`cprjob run` with data in a store of its own: a real MinIO that knows one user, who may not save there."""

from __future__ import annotations

import io
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cpr_contract import env
from support.documents import edited
from support.runs import CPRJOB, run
from support.s3_servers import S3Server, running_minio, user, write_credentials
from support.table_data import as_text, clicks

pytestmark = [pytest.mark.store, pytest.mark.dist, pytest.mark.timeout(600)]

ROWS, EPOCHS = 20_000, 3
COLUMNS = {"labels": ["click"], "counts": ["age", "views"], "numbers": ["price"], "categories": ["user", "item"]}
TABLES = [{"name": "user", "rows": 100}, {"name": "item", "rows": 50}]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[S3Server]:
    (tmp_path / "lake").mkdir()
    with running_minio(tmp_path / "lake") as server:
        server.client().make_bucket("clicks")
        yield server


def job(folder: Path, place: str, **more: Any) -> Path:
    """A manifest whose saves would go to a store that is not there, with a Secret that is not there either."""
    data = {"format": "CSV", "uri": f"{place}/day/", "columns": COLUMNS, "epochs": EPOCHS, "batchSize": 100, "seed": 3}
    document = edited(
        {
            # A lone trainer that dies takes its dense state along. With nothing to lose, the job goes back for it.
            "spec.accuracyBudget.portionOfLostSamples": 0,
            "spec.trainers.workers": 1,  # each run would measure for itself
            "spec.model.tables": TABLES,
            "spec.data": data | more,
            "spec.evaluation": {"uri": f"{place}/test/"},
            "spec.snapshots.store.credentialsSecret": "nowhere",
            "spec.snapshots.interval": {"mode": "Fixed", "seconds": 1},
            "spec.failurePolicy.silenceSeconds": 60,
        }
    )
    folder.mkdir()
    path = folder / "job.yaml"
    path.write_text(json.dumps(document))  # JSON is YAML
    return path


def ask(*command: object, **variables: str) -> str:
    done = subprocess.run(
        (*CPRJOB, *map(str, command)), env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def model(folder: Path) -> dict[str, bytes]:
    ask("export", "--workdir", folder / "work", "--to", folder / "model")
    return {path.name: path.read_bytes() for path in (folder / "model").rglob("*.safetensors")}


def test_a_job_reads_a_lake_and_saves_to_a_folder(lake: S3Server, tmp_path: Path) -> None:
    """It ends in the model of the same rows in local files, with a trainer killed on the way."""
    files = {"day/a.csv": ROWS // 2, "day/b.csv": ROWS // 2, "test/a.csv": 500}
    for seed, (key, rows) in enumerate(files.items()):
        text = as_text(clicks(rows, seed), ",")
        lake.client().put_object("clicks", key, io.BytesIO(text), len(text))
        (tmp_path / "local" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "local" / key).write_bytes(text)
    plain, remote = tmp_path / "plain", tmp_path / "remote"
    code, report, output = run(plain, job(plain, str(tmp_path / "local")))
    assert code == 0, output

    with user(lake) as reader:
        manifest = job(
            remote, "s3://clicks", store={"endpoint": lake.endpoint, "credentialsSecret": "lake", "region": "us-east-1"}
        )
        own = write_credentials(remote / "work" / "secrets" / "lake", *reader)
        code, report, output = run(remote, manifest, "--kill", "trainer/0@0.2:POD")
        assert code == 0, output
        assert (report["phase"], report["samples"], len(report["failures"])) == ("Succeeded", EPOCHS * ROWS, 1)
        assert model(remote) == model(plain)

        stranger = write_credentials(tmp_path / "stranger", "somebody", "else-entirely")
        access = {env.DATA_CREDENTIALS_DIR: str(own), env.CREDENTIALS_DIR: str(stranger)}
        assert "500 held-out samples" in ask("evaluate", "--workdir", remote / "work", **access)
        told = json.loads(ask("data", "inspect", manifest, "--json", **access))
        assert (told["rows"], told["evaluation"]["rows"]) == (ROWS, 500)
