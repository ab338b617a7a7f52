"""Real S3 servers without TLS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cpr_contract.spec import StoreSpec
from support.s3_servers import SERVERS, S3Server


@pytest.fixture(scope="session", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with SERVERS[request.param](tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest.fixture
def spec(server: S3Server) -> StoreSpec:
    return server.new_bucket()
