"""One API server for all tests of this folder, with the CRD installed."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from cpr_operator.api import crd
from support.apiserver import ApiServer, install_crd, running_apiserver

#: The token of one who may do nothing until a test allows it.
STRANGER = "stranger"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with running_apiserver(tmp_path_factory.mktemp("apiserver"), tokens={STRANGER: "stranger"}) as server:
        yield server


@pytest.fixture(scope="session")
def api(server: ApiServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        install_crd(client, crd.build())
        yield client
