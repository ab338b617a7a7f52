"""The operator as a process against a real API server. No kubelet is there, so pods stay pending."""

from __future__ import annotations

import signal
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from cpr_contract import env
from cpr_operator.api import crd
from support.api_proxy import ApiProxy
from support.apiserver import TOKEN, USERS, ApiServer, install_crd, running_apiserver, write_kubeconfig
from support.benches import JOBS, NAMESPACE, document
from support.operator_process import Operator, running_operator, until

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


def operator(server: ApiServer, log: Path, lease: str, user: str = USERS[0]) -> AbstractContextManager[Operator]:
    return running_operator(server.kubeconfig_of(user), log, lease)


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
    with operator(server, log, "jobs") as running:
        client.post(JOBS, json=document("after")).raise_for_status()
        expected = ["shard-0-1", "shard-1-1", "trainer-0-1"]
        until(lambda: pods_of(client, "after") == expected, log)
        until(lambda: "cprjob_phase" in running.metrics(), log)
        meta = client.get(f"{JOBS}/after").json()["metadata"]
        assert not meta.get("annotations")
        assert not meta.get("finalizers")
        victim = client.get(PODS, params={"labelSelector": "cprjob.io/job=after,cprjob.io/role=trainer"}).json()
        client.delete(f"{PODS}/{victim['items'][0]['metadata']['name']}", params={"gracePeriodSeconds": 0})
        until(lambda: "trainer-0-2" in pods_of(client, "after"), log)
        until(lambda: client.get(f"{JOBS}/urgent").json()["status"]["phase"] == "Suspended", log)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0
    for name in ("urgent", "after"):
        client.delete(f"{JOBS}/{name}")


def test_encrypted_job_has_certificates_in_its_secret(server: ApiServer, client: httpx.Client, tmp_path: Path) -> None:
    """The namespace of the operator is that of the jobs here."""
    log, secrets = tmp_path / "operator.log", f"/api/v1/namespaces/{NAMESPACE}/secrets"
    settings = {"CPR_OPERATOR_NAMESPACE": NAMESPACE, "CPR_OPERATOR_ENCRYPTION": "TLS"}
    with running_operator(server.kubeconfig_of(USERS[0]), log, "encrypting", **settings):
        client.post(JOBS, json=document("encrypted")).raise_for_status()
        until(lambda: len(pods_of(client, "encrypted")) == 3, log)
    job = client.get(f"{JOBS}/encrypted").json()
    identity = client.get(f"{secrets}/encrypting-identity").json()["data"]
    name = f"encrypted-{job['metadata']['uid'][:5]}-key-{job['status']['runtime']['keyDigest']}"
    data = client.get(f"{secrets}/{name}").json()["data"]
    assert sorted(data) == sorted((env.KEY_NAME, env.CA_NAME, env.CA_KEY_NAME, env.OPERATOR_NAME))
    assert data[env.OPERATOR_NAME] == identity["tls.crt"]
    assert b64decode(data[env.CA_NAME]).decode() == job["status"]["runtime"]["ca"]
    pods = client.get(PODS, params={"labelSelector": "cprjob.io/encryption=TLS"}).json()["items"]
    assert len(pods) == 3
    client.delete(f"{JOBS}/encrypted")


def test_new_jobs_wait_while_the_crd_is_of_another_release(
    server: ApiServer, client: httpx.Client, tmp_path: Path
) -> None:
    log = tmp_path / "operator.log"
    current = {"metadata": {"annotations": {crd.HASH_ANNOTATION: crd.schema_hash()}}}
    old = {"metadata": {"annotations": {crd.HASH_ANNOTATION: "old"}}}
    client.patch(CRD, json=old, headers=MERGE).raise_for_status()
    try:
        with operator(server, log, "crd"):
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


@contextmanager
def two_operators(server: ApiServer, folder: Path, lease: str) -> Iterator[tuple[Operator, Operator]]:
    """The elected operator and the standby, each another user."""
    with operator(server, folder / "elected.log", lease) as elected:
        until(lambda: elected.role == "leader", folder / "elected.log")
        with operator(server, folder / "standby.log", lease, USERS[1]) as standby:
            until(lambda: standby.role == "standby", folder / "standby.log")
            yield elected, standby


def delete_pod(client: httpx.Client, job: str, role: str) -> None:
    selector = f"cprjob.io/job={job},cprjob.io/role={role}"
    for pod in client.get(PODS, params={"labelSelector": selector}).json()["items"]:
        client.delete(f"{PODS}/{pod['metadata']['name']}", params={"gracePeriodSeconds": 0})


def transitions(client: httpx.Client, lease: str) -> int:
    """Return how often a lease has changed its holder."""
    found = client.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{lease}").json()
    count: int = found["spec"]["leaseTransitions"]
    return count


def test_standby_takes_over_from_a_killed_operator(server: ApiServer, client: httpx.Client, tmp_path: Path) -> None:
    with two_operators(server, tmp_path, "killed") as both:
        client.post(JOBS, json=document("killed")).raise_for_status()
        until(lambda: len(pods_of(client, "killed")) == 3, tmp_path / "elected.log")
        # On a busy machine the lease may have gone to the other one by now.
        before = transitions(client, "killed")
        elected, standby = reversed(both) if before % 2 else both
        assert before or server.writes(USERS[1]) == []
        assert "cprjob_leader 1.0" in elected.metrics()
        assert "cprjob_leader 0.0" in standby.metrics()
        elected.process.kill()
        killed = time.monotonic()
        delete_pod(client, "killed", "trainer")
        until(lambda: "trainer-0-2" in pods_of(client, "killed"), tmp_path / "standby.log")
        print(f"replaced {time.monotonic() - killed:.1f} s after the elected one was killed")
        assert standby.role == "leader"
        assert "cprjob_leader 1.0" in standby.metrics()
        assert transitions(client, "killed") == before + 1
    client.delete(f"{JOBS}/killed")


def rests(server: ApiServer) -> bool:
    """Return whether the elected operator writes only its lease: a request under way could still arrive."""
    before = [each for each in server.writes(USERS[0]) if "/leases/" not in each]
    time.sleep(1.5)
    return before == [each for each in server.writes(USERS[0]) if "/leases/" not in each]


def test_operator_that_was_stopped_writes_nothing(server: ApiServer, client: httpx.Client, tmp_path: Path) -> None:
    with two_operators(server, tmp_path, "stopped") as (elected, standby):
        client.post(JOBS, json=document("stopped")).raise_for_status()
        until(lambda: len(pods_of(client, "stopped")) == 3, tmp_path / "elected.log")
        until(lambda: rests(server), tmp_path / "elected.log")
        elected.process.send_signal(signal.SIGSTOP)
        until(lambda: standby.role == "leader", tmp_path / "standby.log")
        delete_pod(client, "stopped", "trainer")
        until(lambda: "trainer-0-2" in pods_of(client, "stopped"), tmp_path / "standby.log")
        written, taken = server.writes(USERS[0]), transitions(client, "stopped")
        standby.process.send_signal(signal.SIGSTOP)  # so that no other replica does the work
        delete_pod(client, "stopped", "shard")
        elected.process.send_signal(signal.SIGCONT)
        until(lambda: elected.role == "standby", tmp_path / "elected.log")
        assert server.writes(USERS[0]) == written
        standby.process.send_signal(signal.SIGCONT)
        until(lambda: "shard-0-2" in pods_of(client, "stopped"), tmp_path / "standby.log")
        # The lease has run out for both, so either may lead again.
        assert "leader" in {standby.role, elected.role}
        assert server.writes(USERS[0]) == written or transitions(client, "stopped") > taken
    client.delete(f"{JOBS}/stopped")


def test_operator_with_sigterm_hands_over_at_once(server: ApiServer, client: httpx.Client, tmp_path: Path) -> None:
    with two_operators(server, tmp_path, "ended") as (elected, standby):
        before = transitions(client, "ended")
        elected.process.send_signal(signal.SIGTERM)
        until(lambda: standby.role == "leader", tmp_path / "standby.log")
        assert elected.process.wait(60) == 0
        assert transitions(client, "ended") == before + 1


def test_api_server_stopped_until_the_lease_is_lost_ends_no_operator(
    server: ApiServer, client: httpx.Client, tmp_path: Path
) -> None:
    log = tmp_path / "operator.log"
    with operator(server, log, "still") as running:
        client.post(JOBS, json=document("still")).raise_for_status()
        until(lambda: len(pods_of(client, "still")) == 3, log)
        with server.stopped():
            until(lambda: running.role == "standby", log)
        delete_pod(client, "still", "trainer")
        until(lambda: "trainer-0-2" in pods_of(client, "still"), log)
        until(lambda: running.role == "leader", log)
        assert running.process.poll() is None
    client.delete(f"{JOBS}/still")


def test_api_server_that_refuses_until_the_lease_is_lost_ends_no_operator(
    server: ApiServer, client: httpx.Client, tmp_path: Path
) -> None:
    log = tmp_path / "operator.log"
    with server.client() as upstream, ApiProxy(upstream).running() as proxy:
        behind = replace(server, kubeconfig=tmp_path / "kubeconfig")
        write_kubeconfig(behind.kubeconfig_of(USERS[0]), proxy.url, server.ca_file, f"{TOKEN}-{USERS[0]}")
        with operator(behind, log, "refused") as running:
            client.post(JOBS, json=document("refused")).raise_for_status()
            until(lambda: len(pods_of(client, "refused")) == 3, log)
            proxy.fault = 503
            until(lambda: running.role == "standby", log)
            delete_pod(client, "refused", "trainer")
            refused = proxy.refused
            until(lambda: proxy.refused > refused, log)
            assert pods_of(client, "refused") == ["shard-0-1", "shard-1-1"]
            proxy.fault = None
            until(lambda: "trainer-0-2" in pods_of(client, "refused"), log)
            until(lambda: running.role == "leader", log)
            assert running.process.poll() is None
    client.delete(f"{JOBS}/refused")
