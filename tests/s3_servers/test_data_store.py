"""Training data in its own store, not in the one that a job saves to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract import CONTRACT_VERSION
from cpr_contract.spec import DataSpec, EndpointSpec, JobSpec, SnapshotSpec, StoreSpec
from cpr_trainer.data.files import Index
from cpr_trainer.data.open import Find, files_of, indices_of_manifest, manifest_of_indices, open_dataset
from cpr_trainer.errors import DataError
from cpr_trainer.runtime import Access
from cpr_trainer.store import CredentialsRefusedError, StoreUnreachableError, open_store
from support.s3_servers import S3Server, ServerOf, write_credentials
from support.table_data import TABLES, assert_same, clicks, everything, model_of, read, write

pytestmark = pytest.mark.store


@pytest.fixture
def saves(server_of: ServerOf) -> S3Server:
    """The store of the job's saves."""
    return server_of("versitygw")


@pytest.fixture
def lake(server_of: ServerOf) -> S3Server:
    """The store of the data."""
    return server_of("minio")


@pytest.fixture
def local(tmp_path: Path) -> DataSpec:
    return write(clicks(400), tmp_path / "files", "csv", files=3)


@pytest.fixture
def job(saves: S3Server, lake: S3Server, local: DataSpec) -> JobSpec:
    """A job with its data in a bucket of the data's store that the job's store does not have."""
    bucket = lake.new_bucket()
    put(lake, bucket, local)
    data = replace(local, uri=f"s3://{bucket.bucket}/day/", store=EndpointSpec(lake.endpoint, None))
    snapshots = SnapshotSpec(saves.new_bucket(), 2, 30.0, None)
    return JobSpec(CONTRACT_VERSION, "u", "n", model_of(TABLES), data, 1, 1, snapshots, 10.0)


def put(server: S3Server, bucket: StoreSpec, data: DataSpec) -> None:
    store = open_store(bucket, server.credentials_dir, server.ca_file)
    for path in Path(str(data.uri)).iterdir():
        store.put(f"day/{path.name}", path.read_bytes())


def test_data_store_never_gets_the_credentials_of_the_jobs_store(
    job: JobSpec, lake: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Access(lake.credentials_dir)
    for wrong in (Access(write_credentials(tmp_path, "another-user", "else-entirely")), Access(tmp_path / "nothing")):
        with pytest.raises(CredentialsRefusedError) as caught:
            files_of(job, right, wrong).find(str(job.data.uri))
        assert "data.store.credentialsSecret" in caught.value.remedy
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another-user")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "else-entirely")
    with pytest.raises(CredentialsRefusedError):  # the workload's identity, and not that of the job's store
        files_of(job, right, Access()).find(str(job.data.uri))


def test_frozen_data_is_compared_in_the_data_store(
    job: JobSpec, saves: S3Server, lake: S3Server, local: DataSpec, tmp_path: Path
) -> None:
    """The job's store has the same objects; a change of them there does not affect the data."""
    files = files_of(job, Access(saves.credentials_dir), Access(lake.credentials_dir))
    manifests = []

    def frozen(find: Find) -> Sequence[Index]:
        manifests.append(manifest_of_indices("u", str(job.data.uri), find()))
        return indices_of_manifest(manifests[-1])

    open_dataset(job.data, job.model, files, frozen)
    bucket = str(job.data.uri).split("/")[2]
    saves.client().make_bucket(bucket)
    other = write(clicks(400, seed=1), tmp_path / "other", "csv", files=3)
    put(saves, StoreSpec(saves.endpoint, None, bucket, ""), other)
    found = open_dataset(job.data, job.model, files, lambda _: indices_of_manifest(manifests[0]))
    assert_same(everything(found), everything(read(local)))
    put(lake, StoreSpec(lake.endpoint, None, bucket, ""), other)
    with pytest.raises(DataError, match=rf"s3://{bucket}/day/part-00\d\.csv has changed"):
        everything(open_dataset(job.data, job.model, files, lambda _: indices_of_manifest(manifests[0])))


def test_data_store_has_its_own_endpoint_credentials_and_authority(
    job: JobSpec, saves: S3Server, server_of: ServerOf, local: DataSpec
) -> None:
    safe = server_of("minio+tls")
    bucket = safe.new_bucket()
    put(safe, bucket, local)
    data = replace(local, uri=f"s3://{bucket.bucket}/day/", store=EndpointSpec(safe.endpoint, None))
    job = replace(job, data=data)
    stranger = Access(saves.credentials_dir.with_name("nothing"))
    files = files_of(job, stranger, Access(safe.credentials_dir, safe.ca_file))
    assert_same(everything(open_dataset(data, job.model, files)), everything(read(local)))
    with pytest.raises(StoreUnreachableError) as caught:
        files_of(job, Access(None, safe.ca_file), Access(safe.credentials_dir)).find(str(data.uri))
    assert "data.store.endpoint" in caught.value.remedy
