"""Every implementation of `Cluster` that passes the suite."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from cpr_operator.api import crd
from cpr_operator.cluster import api_server
from cpr_operator.cluster.api_server import ApiServer, load_configuration
from cpr_operator.cluster.kubernetes import KubernetesCluster
from cpr_operator.cluster.local.cluster import LocalCluster
from simulation.control_plane.cluster import SimulatedCluster
from support.apiserver import ApiServer as RunningApiServer
from support.apiserver import install_crd, running_apiserver
from support.benches import Bench, FakeBench, KubernetesBench, LocalBench


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApiServer]:
    with running_apiserver(tmp_path_factory.mktemp("apiserver")) as server:
        with server.client() as client:
            install_crd(client, crd.build())
        yield server


@pytest.fixture(params=["local", "fake", pytest.param("kubernetes", marks=pytest.mark.apiserver)])
async def bench(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    if request.param == "local":
        cluster = LocalCluster(tmp_path, clock=time.time, rng=random.Random(1), environment={})
        yield LocalBench(cluster)
        await cluster.close()
    elif request.param == "fake":
        yield FakeBench(SimulatedCluster(total=1000))
    else:
        monkeypatch.setattr(api_server, "TIMEOUT", aiohttp.ClientTimeout(total=120, sock_connect=60))
        server: RunningApiServer = request.getfixturevalue("apiserver")
        configuration = await load_configuration(server.kubeconfig)
        over_api = KubernetesCluster(ApiServer(configuration), time.time)
        with server.client() as client:
            yield KubernetesBench(over_api, client)
        await over_api.close()
