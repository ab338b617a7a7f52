"""`cprjob.Client` against a real API server: no operator runs, and the tests write its status."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cpr_operator.client import NoObjectError, WaitTimeoutError
from cprjob import Client, ClientError
from support.api_jobs import emit, job, pods, run_pod, write_status
from support.apiserver import ApiServer

pytestmark = [pytest.mark.apiserver, pytest.mark.usefixtures("api")]

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"


@pytest.fixture
def client(server: ApiServer) -> Iterator[Client]:
    with Client(kubeconfig=server.kubeconfig) as client:
        yield client


def named(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text("utf-8"))
    return document | {"metadata": {"name": name}}


def test_client_submits_gets_lists_and_deletes(client: Client, api: httpx.Client) -> None:
    created = client.submit(named("typed"))
    found = client.get("typed")
    assert found.uid == created.uid
    assert found.spec == created.spec
    assert (found.namespace, found.phase, found.status.phase) == ("default", "", "Pending")
    assert "typed" in {each.name for each in client.list()}
    assert "typed" in {each.name for each in client.list(all_namespaces=True)}
    assert client.submit(QUICKSTART).spec == created.spec
    client.delete("quickstart")
    for use in (client.get, client.delete):
        with pytest.raises(NoObjectError, match="there is no job quickstart in the namespace default"):
            use("quickstart")


def test_client_takes_its_namespace_before_that_of_the_manifest(server: ApiServer) -> None:
    with (
        Client(kubeconfig=server.kubeconfig, namespace="nowhere") as client,
        pytest.raises(NoObjectError, match='namespaces "nowhere" not found; name another namespace'),
    ):
        client.submit(named("lost") | {"metadata": {"name": "lost", "namespace": "default"}})


def test_client_suspends_resumes_and_scales(client: Client, api: httpx.Client) -> None:
    client.submit(named("changed"))
    assert client.suspend("changed").spec.suspend
    assert job(api, "changed")["spec"]["suspend"] is True
    assert not client.resume("changed").spec.suspend
    scaled = client.scale("changed", trainers=3, shards=4).spec
    assert (scaled.trainers.replicas, scaled.shards.replicas) == (3, 4)
    write_status(api, "changed", {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"})
    assert client.scale("changed", trainers=2).spec.trainers.replicas == 2
    with pytest.raises(ClientError, match=r"can only be changed while the job is suspended; set spec\.suspend to true"):
        client.scale("changed", shards=5)
    with pytest.raises(ClientError, match=r"spec\.trainers\.replicas"):
        client.scale("changed", trainers=0)


def test_client_waits_until_the_job_is_over(client: Client, api: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.submit(named("awaited"))
    with pytest.raises(WaitTimeoutError, match="awaited is not seen after 0 s"):
        client.wait("awaited", timeout_s=0)
    looks = iter(({"phase": "Running"}, {"phase": "Succeeded"}))
    monkeypatch.setattr("cpr_operator.client.client.time.sleep", lambda _s: write_status(api, "awaited", next(looks)))
    assert client.wait("awaited").status.phase == "Succeeded"
    with pytest.raises(WaitTimeoutError, match="is Succeeded, and nothing more happens"):
        client.wait("awaited", until=lambda job: job.phase == "Running")


def test_client_lists_events_of_this_job_alone(client: Client, api: httpx.Client) -> None:
    client.submit(named("noted"))
    emit(api, "noted", "Failure", "of an earlier job", 1.0)
    client.delete("noted")
    client.submit(named("noted"))
    emit(api, "noted", "Recovered", "second", 3.0)
    emit(api, "noted", "Failure", "first", 2.0)
    assert [(each.time, each.line) for each in client.events("noted")] == [
        (2.0, "! Failure: first"),
        (3.0, "! Recovered: second"),
    ]


def test_client_kill_deletes_the_newest_pod_of_a_member(client: Client, api: httpx.Client) -> None:
    client.submit(named("killed"))
    ended, killed, unharmed = (run_pod(api, "killed", "shard", *which) for which in ((1, 1), (1, 2), (0, 1)))
    assert client.kill("killed", "shard", 1) == killed
    assert pods(api, "killed") == {ended, unharmed}
    with pytest.raises(ClientError, match="there is no shard/2; killed has 2 shards, counted from 0"):
        client.kill("killed", "shard", 2)
    with pytest.raises(NoObjectError, match="trainer/0 of killed has no pod that runs now"):
        client.kill("killed", "trainer", 0)
