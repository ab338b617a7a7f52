"""Wrong input on the cluster: a condition and an event name the remedy, and no pod is replaced for it.

All jobs are applied at once in one namespace, and none of them trains.
"""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from cluster.harness import Cluster, Space, until
from cluster.harness.kubectl import KubectlError
from cluster.harness.space import condition
from cluster.harness.store import BUCKET, ENDPOINT, SECRET
from cluster.jobs import ENDLESS, manifest

BAD_ROWS = "data/bad.tsv"
STORE = {"endpoint": ENDPOINT, "bucket": BUCKET, "credentialsSecret": SECRET}


@dataclass(frozen=True)
class Case:
    """A defect of a job, and its report: a condition with a reason, and words in the condition and in an event."""

    name: str
    changes: dict[str, Any]
    condition: str
    reasons: tuple[str, ...]
    words: tuple[str, ...]
    event: str
    status: str = "True"


CASES = (
    Case(
        "no-server",
        {"snapshots__store": STORE | {"endpoint": "http://minio.cprjob-store:9999"}},
        "SnapshotsDegraded",
        ("StoreUnreachable",),
        ("endpoint",),
        "SnapshotsDegraded",
    ),
    Case(
        "no-bucket",
        {"snapshots__store": STORE | {"bucket": "nothing-here"}},
        "SnapshotsDegraded",
        ("BucketMissing",),
        ("bucket",),
        "SnapshotsDegraded",
    ),
    Case(
        "wrong-key",
        {"snapshots__store": STORE | {"credentialsSecret": "wrong"}},
        "SnapshotsDegraded",
        ("CredentialsRefused",),
        ("credentialsSecret",),
        "SnapshotsDegraded",
    ),
    Case(
        "bad-rows",
        {"data": {"format": "Criteo", "uri": f"s3://{BUCKET}/{BAD_ROWS}", "epochs": 1, "batchSize": 128}},
        "Failed",
        ("BadData",),
        ("line 4", "column 9"),
        "Failed",
    ),
    Case(
        "no-image",
        {"image": "localhost/not-there:1"},
        "PodsReady",
        ("ErrImagePull", "ImagePullBackOff"),
        ("localhost/not-there:1", "spec.image"),
        "PodStuck",
        "False",
    ),
)


def job(name: str, **changes: Any) -> dict[str, Any]:
    return manifest(name, **{"data": ENDLESS, "trainers__replicas": 1, "shards__replicas": 1} | changes)


def quota(pods: int) -> dict[str, Any]:
    spec = {"hard": {"pods": str(pods)}}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "pods"}, "spec": spec}


class TestBadInput:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def applied(cls, cluster: Cluster, space: Space) -> Iterator[None]:
        row = "\t".join(["1", *map(str, range(13)), *(f"{i:08x}" for i in range(26))])
        rows = [row, row, row, row.replace("\t7\t", "\tseven\t", 1), row]
        cluster.store.put(BAD_ROWS, "\n".join(rows).encode())
        wrong = {key: base64.b64encode(b"not-the-right-one").decode() for key in ("accessKey", "secretKey")}
        space.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "wrong"}, "data": wrong})
        for case in CASES:
            space.apply(job(case.name, **case.changes))
        yield
        cluster.store.delete(BAD_ROWS)

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_remedy_is_in_a_condition_and_in_an_event(self, space: Space, case: Case) -> None:
        def reported(job: dict[str, Any]) -> bool:
            found = condition(job, case.condition)
            return found.get("status") == case.status and found.get("reason") in case.reasons

        found = space.wait_job(case.name, f"tells {' or '.join(case.reasons)}", reported, within_s=180)
        events = "\n".join(space.wait_for_event(case.name, case.event))
        for word in case.words:
            assert word in condition(found, case.condition)["message"]
            assert word in events
        assert {pod.incarnation for pod in space.pods(job=case.name, role="trainer")} == {1}

    def test_exceeded_quota_blocks_pods_until_it_is_raised(self, space: Space) -> None:
        space.apply(quota(0))
        # Until its controller has seen the quota, the API server refuses pods with other words.
        in_force = ("get", "resourcequota", "pods", "-o", "jsonpath={.status.hard.pods}")
        until("the quota is in force", lambda: space.kubectl(*in_force) == "0", 120)
        space.apply(job("crowded"))
        refused = space.wait_job(
            "crowded", "is refused", lambda job: condition(job, "PodsReady").get("reason") == "CreateRefused"
        )
        events = "\n".join(space.wait_for_event("crowded", "Refused"))
        for word in ("exceeded quota", "free quota"):
            assert word in condition(refused, "PodsReady")["message"]
            assert word in events
        space.apply(quota(100))
        until("its pods are created", lambda: len(space.pods(job="crowded")) == 2, 60)

    def test_more_shards_than_rows_are_refused_when_applied(self, space: Space) -> None:
        with pytest.raises(KubectlError, match="must not exceed the number of rows"):
            space.apply(job("thin", shards__replicas=2, model__tables=[{"name": "only", "rows": 1}]))
