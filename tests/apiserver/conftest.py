"""One API server for all tests of this folder, with the CRD installed."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from cpr_operator.api import crd
from support.apiserver import ApiServer, install_crd, running_apiserver

#: The tokens of users of these names, who may do nothing until a test allows it.
STRANGER, OPERATOR = "stranger", "operator"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with running_apiserver(
        tmp_path_factory.mktemp("apiserver"), tokens={name: name for name in (STRANGER, OPERATOR)}
    ) as server:
        yield server


@pytest.fixture(scope="session")
def api(server: ApiServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        install_crd(client, crd.build())
        yield client
