"""The operator as a process against a real API server. No kubelet is there, so pods stay pending."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from cpr_operator.api import crd
from cpr_operator.cluster.local.ports import PortBlocks
from support.apiserver import ApiServer, install_crd, running_apiserver
from support.benches import JOBS, NAMESPACE, document

pytestmark = [pytest.mark.apiserver, pytest.mark.dist]

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/cprjobs.cprjob.io"
MERGE = {"Content-Type": "application/merge-patch+json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with running_apiserver(tmp_path_factory.mktemp("apiserver")) as running:
        with running.client() as client:
            install_crd(client, crd.build())
        yield running


@pytest.fixture
def client(server: ApiServer) -> Iterator[httpx.Client]:
    with server.client() as opened:
        yield opened


@contextmanager
def operator(server: ApiServer, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A running operator and the address of its HTTP port."""
    with closing(PortBlocks(random.Random())) as ports, log.open("wb") as output:
        port = ports.take()
        environment = {
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(server.kubeconfig),
            "CPR_OPERATOR_NAMESPACES": NAMESPACE,
            "CPR_OPERATOR_HTTP_PORT": str(port),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "cpr_operator"], env=environment, stdout=output, stderr=output
        )
        url = f"http://127.0.0.1:{port}"
        try:
            until(lambda: status_of(f"{url}/readyz") == httpx.codes.OK, log)
            yield process, url
        finally:
            process.kill()
            process.wait()


def status_of(url: str) -> int:
    try:
        return httpx.get(url, trust_env=False).status_code
    except httpx.TransportError:
        return 0


def until(found: Callable[[], Any], log: Path) -> Any:
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        if value := found():
            return value
        time.sleep(0.1)
    pytest.fail(f"it did not come true; the operator says: {log.read_text()[-3000:]}")


def pods_of(client: httpx.Client, job: str) -> list[str]:
    items = client.get(PODS, params={"labelSelector": f"cprjob.io/job={job}"}).json()["items"]
    return sorted("-".join(item["metadata"]["name"].split("-")[2:]) for item in items)


def test_jobs_are_taken_up_and_a_deleted_pod_noticed(server: ApiServer, client: httpx.Client, tmp_path: Path) -> None:
    log = tmp_path / "operator.log"
    urgent = document("urgent")
    urgent["spec"]["suspend"] = True
    client.post(JOBS, json=urgent).raise_for_status()
    status = {"status": {"phase": "Suspending"}}
    client.patch(f"{JOBS}/urgent/status", json=status, headers=MERGE).raise_for_status()
    with operator(server, log) as (process, url):
        client.post(JOBS, json=document("after")).raise_for_status()
        wanted = ["shard-0-1", "shard-1-1", "trainer-0-1"]
        until(lambda: pods_of(client, "after") == wanted, log)
        until(lambda: "cprjob_phase" in httpx.get(f"{url}/metrics", trust_env=False).text, log)
        meta = client.get(f"{JOBS}/after").json()["metadata"]
        assert not meta.get("annotations")
        assert not meta.get("finalizers")
        victim = client.get(PODS, params={"labelSelector": "cprjob.io/job=after,cprjob.io/role=trainer"}).json()
        client.delete(f"{PODS}/{victim['items'][0]['metadata']['name']}", params={"gracePeriodSeconds": 0})
        until(lambda: "trainer-0-2" in pods_of(client, "after"), log)
        until(lambda: client.get(f"{JOBS}/urgent").json()["status"]["phase"] == "Suspended", log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    for name in ("urgent", "after"):
        client.delete(f"{JOBS}/{name}")


def test_new_jobs_wait_while_the_crd_is_of_another_release(
    server: ApiServer, client: httpx.Client, tmp_path: Path
) -> None:
    log = tmp_path / "operator.log"
    current = {"metadata": {"annotations": {crd.HASH_ANNOTATION: crd.schema_hash()}}}
    old = {"metadata": {"annotations": {crd.HASH_ANNOTATION: "old"}}}
    client.patch(CRD, json=old, headers=MERGE).raise_for_status()
    try:
        with operator(server, log):
            client.post(JOBS, json=document("held")).raise_for_status()

            def condition() -> Any:
                found = client.get(f"{JOBS}/held").json().get("status", {}).get("conditions", ())
                return next(
                    (each for each in found if each["type"] == "CRDOutdated" and each["status"] == "True"), None
                )

            assert "upgrade the chart's CRD" in until(condition, log)["message"]
            assert pods_of(client, "held") == []
    finally:
        client.patch(CRD, json=current, headers=MERGE).raise_for_status()
        client.delete(f"{JOBS}/held")
