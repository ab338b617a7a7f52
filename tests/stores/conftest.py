"""Stores of every kind, each empty."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpr_contract.spec import StoreSpec
from cpr_trainer.store import Store, open_store
from support.memory_store import MemoryStore
from support.s3_servers import SERVERS, S3Server, ServerOf, make_certificate


@pytest.fixture(scope="session")
def server_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerOf]:
    """Each server, started when it is first asked for."""
    running: dict[str, S3Server] = {}
    with contextlib.ExitStack() as stack:

        def find(kind: str) -> S3Server:
            if kind not in running:
                name, _, tls = kind.partition("+")
                certificate = make_certificate(tmp_path_factory.mktemp("certificates")) if tls else None
                server = SERVERS[name](tmp_path_factory.mktemp(name), certificate)
                running[kind] = stack.enter_context(server)
            return running[kind]

        yield find


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, server_of: ServerOf) -> S3Server:
    return server_of(request.param)


@pytest.fixture
def spec(server: S3Server) -> StoreSpec:
    """A new bucket."""
    return server.new_bucket()


@pytest.fixture(
    params=[
        "memory",
        "folder",
        *(pytest.param(f"{name}{tls}", marks=pytest.mark.store) for name in SERVERS for tls in ("", "+tls")),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path, server_of: ServerOf) -> Store:
    match request.param:
        case "memory":
            return MemoryStore()
        case "folder":
            return open_store(StoreSpec(tmp_path.as_uri(), None, "bucket", "a/prefix"), None, None)
        case kind:
            server = server_of(kind)
            return open_store(server.new_bucket("a/prefix"), server.credentials_dir, server.ca_file)
