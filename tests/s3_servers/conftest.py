"""Real S3 servers with and without TLS, and an empty store of each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cpr_contract.spec import StoreSpec
from cpr_trainer.store import Store, open_store
from support.s3_servers import SERVERS, S3Server, ServerOf, servers_on_demand

pytest.register_assert_rewrite("support.store_suite", "support.store_faults", "support.store_data")


@pytest.fixture(scope="session")
def server_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerOf]:
    with servers_on_demand(tmp_path_factory.mktemp) as server_of:
        yield server_of


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, server_of: ServerOf) -> S3Server:
    return server_of(request.param)


@pytest.fixture
def spec(server: S3Server) -> StoreSpec:
    return server.new_bucket()


@pytest.fixture(params=[f"{name}{tls}" for name in SERVERS for tls in ("", "+tls")])
def store(request: pytest.FixtureRequest, server_of: ServerOf) -> Store:
    server = server_of(request.param)
    return open_store(server.new_bucket("a/prefix"), server.credentials_dir, server.ca_file)
