"""The chart as helm brings it to a real API server: over release 0.1.0 and back, and away. No operator runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cluster.harness import until
from cpr_operator.api import crd
from support.api_jobs import JOBS, job, write_status
from support.apiserver import ApiServer, running_apiserver
from support.chart import CHART, helm
from support.previous_release import unpack

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(600, func_only=True)]

ROOT = Path(__file__).parents[2]
NAMESPACE = "cprjob-system"
CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd.NAME}"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/cprjob"
#: The status of a job that trains, as the operator of 0.1.0 writes it.
REPORT: dict[str, Any] = {
    "phase": "Running",
    "restarts": 1,
    "progress": {"percent": 42},
    "budget": {"limit": 0.1, "spent": 0.0125, "remaining": 0.0875},
    "trainers": [{"index": 0, "state": "Training", "host": "10.0.0.1"}],
    "shards": [{"index": 0, "state": "Ready"}, {"index": 1, "state": "Ready", "incarnation": 2}],
}
Release = Callable[..., str]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A server of our own: the CRD on that of the other tests is not a release's."""
    with running_apiserver(tmp_path_factory.mktemp("releases")) as server:
        yield server


@pytest.fixture
def client(empty: ApiServer) -> Iterator[httpx.Client]:
    with empty.client() as client:
        yield client


@pytest.fixture
def release(empty: ApiServer) -> Iterator[Release]:
    """The release cprjob on that server: `release(COMMAND, ARGUMENTS...)` returns helm's output."""

    def run(command: str, *arguments: str | Path) -> str:
        place = ("--kubeconfig", str(empty.kubeconfig), "--namespace", NAMESPACE)
        done = helm(command, "cprjob", *map(str, arguments), *place)
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield run
    run("uninstall", "--ignore-not-found")


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of release 0.1.0."""
    folder = tmp_path_factory.mktemp("before")
    unpack(folder)
    return folder


def create(client: httpx.Client, example: Path, name: str) -> dict[str, Any]:
    """Create the job of a file under another name, once jobs are served."""
    until("jobs are served", lambda: client.get(JOBS).status_code == httpx.codes.OK, 120)
    answer = client.post(JOBS, json=yaml.safe_load(example.read_text("utf-8")) | {"metadata": {"name": name}})
    assert answer.status_code == httpx.codes.CREATED, answer.text
    return job(client, name)


def keeps(new: Any, old: Any) -> bool:
    """Return whether the new document has all fields of the old one, and perhaps more."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(key in new and keeps(new[key], value) for key, value in old.items())
    if isinstance(old, list):
        return isinstance(new, list) and len(new) == len(old) and all(map(keeps, new, old))
    return bool(new == old)


def test_job_of_0_1_0_is_the_same_under_this_release_and_after_the_way_back(
    release: Release, client: httpx.Client, before: Path
) -> None:
    release("install", before / "charts" / "cprjob", "--create-namespace")
    spec = create(client, before / "examples" / "quickstart.yaml", "old")["spec"]
    write_status(client, "old", REPORT)
    status = job(client, "old")["status"]
    assert keeps(status, REPORT)
    release("upgrade", CHART, "--reset-then-reuse-values")
    until("the new schema is served", lambda: "replay" in job(client, "old")["spec"]["recovery"], 120)
    upgraded = job(client, "old")
    assert keeps(upgraded["spec"], spec)
    assert keeps(upgraded["status"], status)
    write_status(client, "old", upgraded["status"] | {"phase": "Recovering"})
    installed = client.get(CRD).json()
    assert installed["metadata"]["annotations"][crd.HASH_ANNOTATION] == crd.schema_hash()
    assert client.get(DEPLOYMENT).json()["spec"]["replicas"] == 2
    assert "Rollback was a success" in release("rollback", "1")
    until("the old schema is served", lambda: "replay" not in job(client, "old")["spec"]["recovery"], 120)
    assert job(client, "old")["spec"] == spec
    assert client.get(DEPLOYMENT).json()["spec"]["replicas"] == 1


def test_uninstall_keeps_the_crd_and_the_jobs_for_the_next_release(release: Release, client: httpx.Client) -> None:
    release("install", CHART, "--create-namespace")
    uid = create(client, ROOT / "examples" / "quickstart.yaml", "left")["metadata"]["uid"]
    output = release("uninstall")
    assert crd.NAME in output
    assert client.get(CRD).status_code == httpx.codes.OK
    assert job(client, "left")["metadata"]["uid"] == uid
    assert client.get(DEPLOYMENT).status_code == httpx.codes.NOT_FOUND
    release("install", CHART)
    assert job(client, "left")["metadata"]["uid"] == uid
