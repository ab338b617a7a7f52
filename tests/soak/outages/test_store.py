"""The store's credentials change under a job that trains, on the cluster: training continues, and saves come again."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.harness import Cluster, Space, until
from cluster.harness.space import condition
from cluster.harness.store import BUCKET, ENDPOINT
from cluster.jobs import Run, failures

pytestmark = pytest.mark.timeout(300, func_only=True)

OLD, NEW = ("first-user", "first-secret-of-these"), ("second-user", "second-secret-of-these")


@pytest.fixture
def users(cluster: Cluster) -> Iterator[None]:
    yield
    for access, secret in (OLD, NEW):
        if cluster.store.accepts(access, secret):
            cluster.store.remove_user(access)


@pytest.mark.usefixtures("users")
def test_changed_secret_is_used_without_a_restart(cluster: Cluster, space: Space) -> None:
    cluster.store.add_user(*OLD)
    space.apply(secret_of(*OLD))
    store = {"endpoint": ENDPOINT, "bucket": BUCKET, "credentialsSecret": "rotating"}
    run = Run.endless(space, "rotated", snapshots__store=store)
    until("it has an anchor", lambda: newest_anchor(run) >= 0, 90)
    cluster.store.add_user(*NEW)
    cluster.store.remove_user(OLD[0])
    assert not cluster.store.accepts(*OLD)
    space.wait_job(
        run.name, "is refused", lambda job: condition(job, "SnapshotsDegraded")["reason"] == "CredentialsRefused"
    )
    before = newest_anchor(run)
    run.train_on()
    space.apply(secret_of(*NEW))
    space.wait_condition(run.name, "SnapshotsDegraded", "False", within_s=150)  # the kubelet takes its time
    until("it is saved again", lambda: newest_anchor(run) > before, 90)
    run.train_on()
    assert (run.uids(), failures(run.status())) == (run.before, [])
    containers = [each for pod in space.pods(job=run.name) for each in pod.raw["status"]["containerStatuses"]]
    assert not any(each["restartCount"] for each in containers)
    run.delete()


def newest_anchor(run: Run) -> int:
    """Return the samples of the newest anchor in the status; -1 before there is one."""
    return max((int(anchor["samples"]) for anchor in run.status().get("anchors", ())), default=-1)


def secret_of(access: str, secret: str) -> dict[str, Any]:
    data = {"accessKey": access, "secretKey": secret}
    coded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "rotating"}, "data": coded}
