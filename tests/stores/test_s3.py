"""Errors before a bucket is reached, exports to an S3 server, and the raw client of the benchmarks."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cpr_contract.requests import ExportRequest
from cpr_contract.spec import StoreSpec
from cpr_trainer.export.main import open_uri, publish
from cpr_trainer.store import BucketMissingError, StoreUnreachableError, in_parallel, open_store
from cprjob_bench.roles.snapshot.raw_transfers import RawClient, raw_client
from support.s3_servers import S3Server, free_port, write_credentials
from support.store_suite import errors_of

DATA = os.urandom(3 << 20)


def test_stopped_store_is_unreachable(tmp_path: Path) -> None:
    with free_port() as port:
        spec = StoreSpec(f"http://127.0.0.1:{port}", None, "bucket", "")
        store = open_store(spec, write_credentials(tmp_path, "a", "b"), None)
        assert [error.reason for error in errors_of(store)] == ["StoreUnreachable"] * 5


def test_server_without_tls_has_no_certificate(tmp_path: Path, server: S3Server) -> None:
    spec = StoreSpec(server.endpoint.replace("http://", "https://"), "us-east-1", "bucket", "")
    with pytest.raises(StoreUnreachableError, match="certificate"):
        open_store(spec, write_credentials(tmp_path, "a", "b"), None).get("job/a")


def test_impossible_bucket_name_is_refused_at_once(spec: StoreSpec) -> None:
    with pytest.raises(BucketMissingError, match="No bucket can be named"):
        open_store(replace(spec, bucket="No Bucket!"), None, None)


def test_model_is_published_to_the_bucket_of_its_uri(spec: StoreSpec, server: S3Server, tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "a%2Fb.safetensors").write_bytes(bytes(range(256)) * 9000)
    (tmp_path / "model.json").write_text(json.dumps({"job": "job", "step": 7, "samples": 70}), "utf-8")
    other = server.new_bucket()
    target = open_uri(f"s3://{other.bucket}/served/models/", spec, server.credentials_dir, None)
    publish(target, tmp_path, ExportRequest("anchor"))
    found = open_store(other, server.credentials_dir, None)
    about = json.loads(found.get("served/models/current.json"))
    assert (about["anchor"], about["step"]) == ("anchor", 7)
    folder = f"served/models/{about['model']}"
    for name in ("tables/a%2Fb.safetensors", "model.json"):
        assert found.get(f"{folder}/{name}") == (tmp_path / name).read_bytes()
    assert len(found.list("")) == 3


@pytest.mark.parametrize("kind", ["folder", "moto"])
def test_raw_client_moves_the_same_bytes_as_the_store(kind: str, tmp_path: Path, server: S3Server) -> None:
    """Otherwise the comparison with the store would be invalid."""
    spec = server.new_bucket() if kind == "moto" else StoreSpec(tmp_path.as_uri(), None, "bucket", "")
    store = open_store(spec, server.credentials_dir, None)

    def there_and_back(raw: RawClient, number: int) -> None:
        raw.put(f"raw-{number}", memoryview(DATA))
        assert store.get(f"raw-{number}") == DATA
        store.put(f"store-{number}", DATA)
        found = bytearray(len(DATA))
        raw.get_into(f"store-{number}", memoryview(found))
        assert found == DATA

    with raw_client(spec, server.credentials_dir, None) as raw:
        in_parallel(partial(there_and_back, raw), range(6), threads=2)


def test_raw_client_raises_errors(spec: StoreSpec, server: S3Server) -> None:
    with raw_client(spec, server.credentials_dir, None) as raw, pytest.raises(OSError, match="404"):
        raw.get_into("nothing", memoryview(bytearray(1)))
