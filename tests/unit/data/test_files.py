"""Which store the data of a job is read at, and as whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.spec import DataSpec, EndpointSpec, JobSpec, StoreSpec
from cpr_trainer.data.open import files_of
from cpr_trainer.errors import TrainerError
from cpr_trainer.runtime import Access
from cpr_trainer.store import uris
from cpr_trainer.store.connection import Connection
from support.shard_job import small_job

SAVES, LAKE = StoreSpec("http://saves:9000", "eu-1", "bucket", ""), EndpointSpec("https://lake:9000", "eu-2")
SMALL = small_job(Path("unused"))
JOB = replace(
    SMALL,
    data=DataSpec("Criteo", "s3://clicks/day", 1, None, 10, 0, 0),
    snapshots=replace(SMALL.snapshots, store=SAVES),
)
OWN = replace(JOB, data=replace(JOB.data, store=LAKE))


@pytest.mark.parametrize(
    ("job", "asked"),
    [
        (JOB, (SAVES, Path("/saves"), Path("/saves-ca"), "snapshots.store")),
        (OWN, (LAKE, Path("/lake"), Path("/lake-ca"), "data.store")),
    ],
)
def test_one_store_is_asked_with_its_own_access(job: JobSpec, asked: object, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def note(*arguments: object) -> Connection:
        seen.append(arguments)
        raise ConnectionError

    monkeypatch.setattr(uris, "connect", note)
    files = files_of(job, Access(Path("/saves"), Path("/saves-ca")), Access(Path("/lake"), Path("/lake-ca")))
    with pytest.raises(ConnectionError):
        files.version(str(job.data.uri))
    assert seen == [asked]


@pytest.mark.parametrize(("job", "field"), [(JOB, "snapshots.store"), (OWN, "data.store")])
def test_what_is_wrong_names_the_store_of_the_data(job: JobSpec, field: str, tmp_path: Path) -> None:
    access = Access(tmp_path / "nothing")
    with pytest.raises(TrainerError) as caught:
        files_of(job, access, access).version(str(job.data.uri))
    assert f"Set {field}.credentialsSecret" in caught.value.remedy
