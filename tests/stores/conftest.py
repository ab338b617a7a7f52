"""Stores of every kind, each empty."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpr_contract.spec import StoreSpec
from cpr_trainer.store import Store, open_store
from support.memory_store import MemoryStore
from support.minio import MinioServer, running_minio


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with running_minio(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture
def bucket(minio: MinioServer) -> str:
    name = f"test-{uuid.uuid4().hex[:12]}"
    minio.client().make_bucket(name)
    return name


@pytest.fixture(params=["memory", "folder", pytest.param("minio", marks=pytest.mark.store)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match request.param:
        case "memory":
            return MemoryStore()
        case "folder":
            return open_store(StoreSpec(tmp_path.as_uri(), None, "bucket", "a/prefix"), None, None)
        case _:
            server: MinioServer = request.getfixturevalue("minio")
            spec = StoreSpec(server.endpoint, None, request.getfixturevalue("bucket"), "a/prefix")
            return open_store(spec, server.credentials_dir, None)
