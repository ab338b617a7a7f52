"""One API server for all tests of this folder, with the CRD installed."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from cpr_operator.api import crd
from support.apiserver import install_crd, running_apiserver


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running_apiserver(tmp_path_factory.mktemp("apiserver")) as server, server.client() as client:
        install_crd(client, crd.build())
        yield client
