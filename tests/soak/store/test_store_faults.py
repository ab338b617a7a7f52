"""Faults of the store under jobs that train, on the cluster: training goes on, and saves come again."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.harness import Cluster, Space, until
from cluster.harness.space import condition
from cluster.harness.store import BUCKET, ENDPOINT, SECRET
from cluster.jobs import Run, failures

pytestmark = pytest.mark.timeout(300, func_only=True)

VANISHING = "vanishing"
OLD, NEW = ("first-user", "first-secret-of-these"), ("second-user", "second-secret-of-these")


def store(**changes: str) -> dict[str, str]:
    return {"endpoint": ENDPOINT, "bucket": BUCKET, "credentialsSecret": SECRET} | changes


def newest(run: Run) -> int:
    """Samples of the newest anchor that the status knows; -1 before there is one."""
    return max((int(anchor["samples"]) for anchor in run.status().get("anchors", ())), default=-1)


def wait_for_anchor(run: Run, after: int = -1) -> None:
    until(f"{run.name} has an anchor after sample {after}", lambda: newest(run) > after, 90)


def untouched(run: Run) -> bool:
    """Whether no pod was replaced, nor its process restarted."""
    status = run.status()
    containers = [each for pod in run.space.pods(job=run.name) for each in pod.raw["status"]["containerStatuses"]]
    restarted = any(each["restartCount"] for each in containers)
    return (run.uids(), failures(status), status["counters"]["generation"], restarted) == (run.before, [], 1, False)


class TestTheBucketVanishes:
    @pytest.fixture
    def bucket(self, cluster: Cluster) -> Iterator[str]:
        cluster.store.make_bucket(VANISHING)
        yield VANISHING
        until("the bucket is gone", lambda: cluster.store.remove_bucket(VANISHING), 60)

    def test_saves_in_a_new_bucket_stand_on_nothing_in_the_one_that_vanished(
        self, cluster: Cluster, space: Space, bucket: str
    ) -> None:
        run = Run.endless(space, "homeless", snapshots__store=store(bucket=bucket))
        wait_for_anchor(run)
        until("the bucket is gone", lambda: cluster.store.remove_bucket(bucket), 60)
        space.wait_job(
            run.name, "misses its bucket", lambda job: condition(job, "SnapshotsDegraded")["reason"] == "BucketMissing"
        )
        run.train_on()
        cluster.store.make_bucket(bucket)
        gone = newest(run)
        wait_for_anchor(run, gone)
        wait_for_anchor(run, newest(run))
        space.wait_condition(run.name, "SnapshotsDegraded", "False", within_s=60)
        assert untouched(run)
        cluster.nodes.signal(run.pod("shard", 1), "KILL")
        status = run.wait("is whole again", lambda s: bool(failures(s)) and s.get("recovery") is None, within_s=90)
        assert failures(status) == [("shard", 1, 1, "Killed")]
        assert (status["counters"]["generation"], status["budget"]["rollbacks"]) == (1, 0)
        assert 0 < status["failures"][0]["lostSamples"] < run.trained() - gone
        run.delete()
        until("its pods are gone", lambda: not space.pods(job=run.name), 60)


class TestCredentials:
    @pytest.fixture
    def users(self, cluster: Cluster) -> Iterator[None]:
        yield
        for access, secret in (OLD, NEW):
            if cluster.store.knows(access, secret):
                cluster.store.remove_user(access)

    def test_changed_secret_is_used_without_a_restart(self, cluster: Cluster, space: Space, users: None) -> None:
        cluster.store.add_user(*OLD)
        space.apply(_secret(*OLD))
        run = Run.endless(space, "rotated", snapshots__store=store(credentialsSecret="rotating"))
        wait_for_anchor(run)
        cluster.store.add_user(*NEW)
        cluster.store.remove_user(OLD[0])
        assert not cluster.store.knows(*OLD)
        space.wait_job(
            run.name, "is refused", lambda job: condition(job, "SnapshotsDegraded")["reason"] == "CredentialsRefused"
        )
        before = newest(run)
        run.train_on()
        space.apply(_secret(*NEW))
        space.wait_condition(run.name, "SnapshotsDegraded", "False", within_s=150)  # the kubelet takes its time
        wait_for_anchor(run, before)
        run.train_on()
        assert untouched(run)
        run.delete()


def _secret(access: str, secret: str) -> dict[str, Any]:
    data = {"accessKey": access, "secretKey": secret}
    coded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "rotating"}, "data": coded}
