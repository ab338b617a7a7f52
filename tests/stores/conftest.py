"""Stores that need Python alone, each empty: in memory, in a folder, and of moto as a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cpr_contract.spec import StoreSpec
from cpr_trainer.store import Store, open_store
from support.memory_store import MemoryStore
from support.s3_servers import S3Server, running_moto

pytest.register_assert_rewrite("support.store_suite", "support.store_faults", "support.store_data")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture
def spec(server: S3Server) -> StoreSpec:
    return server.new_bucket()


@pytest.fixture(params=["memory", "folder", "moto"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match request.param:
        case "memory":
            return MemoryStore()
        case "folder":
            return open_store(StoreSpec(tmp_path.as_uri(), None, "bucket", "a/prefix"), None, None)
        case _:
            server: S3Server = request.getfixturevalue("server")
            return open_store(server.new_bucket("a/prefix"), server.credentials_dir, None)
