"""The store that the data of a job is read from, and its access."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.spec import DataSpec, EndpointSpec, JobSpec, StoreSpec
from cpr_trainer.data import batch
from cpr_trainer.data.dataset import Batch
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
WITH_STORE = replace(JOB, data=replace(JOB.data, store=LAKE))


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (JOB, (SAVES, Path("/saves"), Path("/saves-ca"), "snapshots.store")),
        (WITH_STORE, (LAKE, Path("/lake"), Path("/lake-ca"), "data.store")),
    ],
)
def test_data_store_is_opened_with_its_own_access(
    job: JobSpec, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def note(*arguments: object) -> Connection:
        seen.append(arguments)
        raise ConnectionError

    monkeypatch.setattr(uris, "connect", note)
    files = files_of(job, Access(Path("/saves"), Path("/saves-ca")), Access(Path("/lake"), Path("/lake-ca")))
    with pytest.raises(ConnectionError):
        files.version(str(job.data.uri))
    assert seen == [expected]


@pytest.mark.parametrize(("job", "field"), [(JOB, "snapshots.store"), (WITH_STORE, "data.store")])
def test_store_error_names_the_field_of_the_data_store(job: JobSpec, field: str, tmp_path: Path) -> None:
    access = Access(tmp_path / "nothing")
    with pytest.raises(TrainerError) as caught:
        files_of(job, access, access).version(str(job.data.uri))
    assert f"Set {field}.credentialsSecret" in caught.value.remedy


def test_batch_is_importable_from_the_path_of_release_0_1_0() -> None:
    assert batch.Batch is Batch
