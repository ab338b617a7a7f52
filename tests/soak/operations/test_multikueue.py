"""A job that MultiKueue runs in another cluster, set up as docs/multikueue.md prints it.

Two API servers, each with Kueue's own controller, as its chart allows it, and an operator. There are no nodes, so pods
stay pending, and no garbage collector.
"""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cpr_operator.api import crd
from cpr_operator.desired.workload import MULTIKUEUE, PRIORITY_LABEL, QUEUE_LABEL, QUOTA_FINALIZER
from cpr_operator.reconcile.kueue import owner_of
from support import kueue
from support.apiserver import ApiServer, install_crd, running_apiserver, write_kubeconfig
from support.benches import JOBS, document
from support.kueue import running_kueue
from support.kueue_jobs import TOKEN, USER, collect_garbage, condition, create, grant, pods_of, workload_of
from support.operator_process import running_operator, until
from support.pages import ROOT

pytestmark = [pytest.mark.apiserver, pytest.mark.dist, pytest.mark.timeout(400, func_only=True)]

BINARIES = ROOT / "tests" / "cluster" / "binaries.sh"
PAGE = ROOT / "docs" / "multikueue.md"
#: The user of the manager's Kueue in the worker.
REMOTE = f"system:serviceaccount:{kueue.NAMESPACE}:multikueue"
SECRETS = f"/api/v1/namespaces/{kueue.NAMESPACE}/secrets"


def printed(title: str) -> list[dict[str, Any]]:
    """The objects of the page's block with this comment in its first line."""
    (block,) = re.findall(rf"^```yaml\n# {title}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return list(yaml.safe_load_all(block))


def settings() -> dict[str, Any]:
    """The page's addition to Kueue's configuration."""
    (block,) = re.findall(r"^```yaml\n(multiKueue:\n.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    found: dict[str, Any] = yaml.safe_load(block)
    return found


@dataclass(frozen=True)
class Side:
    """One of the two clusters."""

    server: ApiServer
    api: httpx.Client
    log: Path

    def job(self, name: str) -> dict[str, Any]:
        answer = self.api.get(f"{JOBS}/{name}")
        return answer.json() if answer.is_success else {}

    def phase(self, name: str) -> str:
        return str(self.job(name).get("status", {}).get("phase", ""))


@contextmanager
def running_side(folder: Path, title: str, **configuration: Any) -> Iterator[Side]:
    """A cluster with Kueue, an operator, and the objects of the page."""
    (folder / "server").mkdir(parents=True)
    tokens = {TOKEN: USER, kueue.TOKEN: kueue.USER, REMOTE: REMOTE}
    log = folder / "operator.log"
    with running_apiserver(folder / "server", tokens=tokens) as server, server.client() as api:
        install_crd(api, crd.build())
        grant(api)
        kubeconfig = write_kubeconfig(folder / "kubeconfig", server.url, server.ca_file, TOKEN)
        with (
            running_kueue(folder / "kueue", server, **configuration),
            running_operator(kubeconfig, log, "cprjob", CPR_OPERATOR_KUEUE="true"),
        ):
            for each in printed(title):
                if each["kind"] != "ServiceAccount":  # no controller makes its token: REMOTE stands for it
                    create(api, each)
            yield Side(server, api, log)


def connect(manager: Side, worker: Side, folder: Path) -> None:
    """Give the manager's Kueue the page's Secret."""
    path = write_kubeconfig(folder / "kubeconfig", worker.server.url, worker.server.ca_file, REMOTE)
    config = yaml.safe_load(path.read_text("utf-8"))
    authority = base64.b64encode(worker.server.ca_file.read_bytes()).decode()
    config["clusters"][0]["cluster"] = {"server": worker.server.url, "certificate-authority-data": authority}
    secret = {"metadata": {"name": "worker-1"}, "stringData": {"kubeconfig": yaml.safe_dump(config)}}
    manager.api.post(SECRETS, json=secret).raise_for_status()


def submit(side: Side, name: str, *, priority: str = "", **spec: Any) -> None:
    job = document(name)
    job["metadata"]["labels"] = {QUEUE_LABEL: "training"} | ({PRIORITY_LABEL: priority} if priority else {})
    job["spec"] |= spec
    side.api.post(JOBS, json=job).raise_for_status()


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    subprocess.run([BINARIES, "kubernetes", "etcd", "helm", "kueue"], check=False)  # no Go: what uses them skips
    folder = tmp_path_factory.mktemp("multikueue")
    with ExitStack() as stack:
        worker = stack.enter_context(running_side(folder / "worker", "worker"))
        manager = stack.enter_context(running_side(folder / "manager", "manager", **settings()))
        connect(manager, worker, folder)
        yield manager, worker


def test_job_of_the_manager_trains_in_the_worker(sides: tuple[Side, Side]) -> None:
    manager, worker = sides
    submit(manager, "clicks", managedBy=MULTIKUEUE)
    until(lambda: len(pods_of(worker.api, "clicks")) == 3, worker.log)
    created, found = worker.job("clicks"), workload_of(worker.api, "clicks")
    assert "managedBy" not in created["spec"]
    assert found["metadata"]["name"] == workload_of(manager.api, "clicks")["metadata"]["name"]
    assert owner_of(found) == created["metadata"]["uid"] != manager.job("clicks")["metadata"]["uid"]
    assert QUOTA_FINALIZER in found["metadata"]["finalizers"]
    until(
        lambda: manager.job("clicks").get("status", {}).get("startTime") == created["status"]["startTime"], worker.log
    )
    assert condition(manager.job("clicks"), "QuotaReserved") == "True Admitted"
    assert pods_of(manager.api, "clicks") == []

    change = {"spec": {"ttlSecondsAfterFinished": 5}}
    merge = {"Content-Type": "application/merge-patch+json"}
    refused = manager.api.patch(f"{JOBS}/clicks", json=change, headers=merge)
    assert refused.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert "MultiKueue has created the job in a worker cluster" in refused.text

    # A job of the worker needs the quota: the job saves, stops, and is created again when there is room.
    kind = {"apiVersion": f"{kueue.GROUP}/{kueue.VERSION}", "kind": "WorkloadPriorityClass"}
    create(worker.api, kind | {"metadata": {"name": "urgent"}, "value": 1000})
    submit(worker, "urgent", priority="urgent")
    until(lambda: len(pods_of(worker.api, "urgent")) == 3, worker.log)
    until(lambda: worker.job("clicks") == {}, manager.log)
    assert pods_of(worker.api, "clicks") == []
    worker.api.delete(f"{JOBS}/urgent").raise_for_status()
    collect_garbage(worker.api, "urgent")
    until(lambda: len(pods_of(worker.api, "clicks")) == 3, worker.log)
    again = worker.job("clicks")["metadata"]["uid"]
    assert again != created["metadata"]["uid"]

    manager.api.delete(f"{JOBS}/clicks").raise_for_status()
    collect_garbage(manager.api, "clicks")
    until(lambda: worker.job("clicks") == {}, manager.log)
    for pod in pods_of(worker.api, "clicks"):
        worker.api.delete(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}").raise_for_status()
    until(lambda: workload_of(worker.api, "clicks") == {}, worker.log)
