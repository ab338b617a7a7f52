"""Two jobs and quota for one, with Kueue's own controller, which is compiled for this test.

There are no nodes, so pods stay pending, but for one each. The pod is bound to a node that never answers: it ends when
the test deletes it. No garbage collector runs here either.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from cpr_operator.api import crd
from cpr_operator.desired.workload import PRIORITY_LABEL, QUEUE_LABEL
from support import kueue
from support.apiserver import ApiServer, install_crd, running_apiserver, write_kubeconfig
from support.benches import JOBS, document
from support.kueue import queue_objects, running_kueue
from support.kueue_jobs import PODS, TOKEN, USER, collect_garbage, condition, create, grant, pods_of, workload_of
from support.operator_process import running_operator, until

pytestmark = [pytest.mark.apiserver, pytest.mark.dist, pytest.mark.timeout(300, func_only=True)]

BINARIES = Path(__file__).parents[2] / "cluster" / "binaries.sh"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A separate API server, because Kueue's webhooks apply to every pod."""
    subprocess.run([BINARIES, "kubernetes", "etcd", "helm", "kueue"], check=False)  # no Go: what uses them skips
    folder = tmp_path_factory.mktemp("kueue")
    (folder / "server").mkdir()
    with running_apiserver(folder / "server", tokens={TOKEN: USER, kueue.TOKEN: kueue.USER}) as server:
        with server.client() as client:
            install_crd(client, crd.build())
        yield server


@pytest.fixture
def api(server: ApiServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def create_job(api: httpx.Client, name: str, **labels: str) -> None:
    job = document(name)
    job["metadata"]["labels"] = {QUEUE_LABEL: "training", **labels}
    api.post(JOBS, json=job).raise_for_status()


def quota(api: httpx.Client, job: str) -> str:
    return condition(api.get(f"{JOBS}/{job}").json(), "QuotaReserved")


def hold(api: httpx.Client, job: str) -> str:
    """Bind one of the job's pods to a node, so that it stays until a kubelet confirms its end."""
    name: str = pods_of(api, job)[0]["metadata"]["name"]
    target = {"apiVersion": "v1", "kind": "Node", "name": "silent"}
    api.post(f"{PODS}/{name}/binding", json={"metadata": {"name": name}, "target": target}).raise_for_status()
    return name


def end(api: httpx.Client, pod: str) -> None:
    """Report the end of the pod's processes in place of a kubelet."""
    api.delete(f"{PODS}/{pod}", params={"gracePeriodSeconds": 0}).raise_for_status()


def only(api: httpx.Client, job: str, pod: str) -> bool:
    """Return whether only this pod of the job is left."""
    return [each["metadata"]["name"] for each in pods_of(api, job)] == [pod]


def test_quota_moves_to_the_next_job_after_the_pods(server: ApiServer, api: httpx.Client, tmp_path: Path) -> None:
    grant(api)
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", server.url, server.ca_file, TOKEN)
    log = tmp_path / "operator.log"
    with ExitStack() as stack:
        stack.enter_context(running_operator(kubeconfig, log, "cprjob", CPR_OPERATOR_KUEUE="true"))
        create_job(api, "patient")
        until(lambda: quota(api, "patient") == "False KueueRefused", log)
        until(lambda: "Kueue is not installed" in log.read_text(), log)
        stack.enter_context(running_kueue(tmp_path / "kueue", server))
        for each in queue_objects("team", "1500m"):
            create(api, each)
        until(lambda: len(pods_of(api, "patient")) == 3, log)
        assert quota(api, "patient") == "True Admitted"
        assert all(pod["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"} for pod in pods_of(api, "patient"))

        held = hold(api, "patient")
        create_job(api, "urgent", **{PRIORITY_LABEL: "urgent"})
        until(lambda: only(api, "patient", held), log)
        assert condition(workload_of(api, "patient"), "Evicted") == "True Preempted"
        assert condition(workload_of(api, "patient"), "QuotaReserved") == "True QuotaReserved"
        until(lambda: quota(api, "urgent") == "False WaitsForQuota", log)
        end(api, held)
        until(lambda: len(pods_of(api, "urgent")) == 3, log)
        assert pods_of(api, "patient") == []
        assert condition(workload_of(api, "patient"), "QuotaReserved").startswith("False")
        until(lambda: quota(api, "patient") == "False Preempted", log)

        held = hold(api, "urgent")
        api.delete(f"{JOBS}/urgent").raise_for_status()
        collect_garbage(api, "urgent")
        until(lambda: only(api, "urgent", held), log)
        assert "deletionTimestamp" in workload_of(api, "urgent")["metadata"]
        assert pods_of(api, "patient") == []
        end(api, held)
        until(lambda: workload_of(api, "urgent") == {}, log)
        until(lambda: len(pods_of(api, "patient")) == 3, log)
        assert quota(api, "patient") == "True Admitted"
