"""What users get wrong, on the real cluster: a condition and an event with the remedy, no crash loop, no loss."""

import base64
import json
from typing import Any

import pytest

from cluster.harness import Cluster, Space, until
from cluster.harness.kubectl import KubectlError
from cluster.harness.space import condition
from cluster.harness.store import BUCKET, ENDPOINT, SECRET
from cluster.jobs import Run, account, ledger, manifest, verify

SYNTHETIC = {"format": "Synthetic", "samples": 60_000, "batchSize": 128, "seed": 1}


def apply(space: Space, name: str, **changes: Any) -> None:
    space.apply(manifest(name, **{"data": SYNTHETIC, "trainers__replicas": 1, "shards__replicas": 2} | changes))


def incarnations(space: Space, name: str) -> set[int]:
    return {pod.incarnation for pod in space.pods(job=name)}


class TestTheStore:
    @pytest.mark.parametrize(
        ("name", "store", "reason", "remedy"),
        [
            ("nobody", {"endpoint": "http://minio.cprjob-store:9999"}, "StoreUnreachable", "endpoint"),
            ("no-bucket", {"bucket": "nothing-here"}, "BucketMissing", "bucket"),
            ("stranger", {"credentialsSecret": "wrong"}, "CredentialsRefused", "credentialsSecret"),
        ],
    )
    def test_a_store_that_cannot_be_used_is_waited_for(
        self, space: Space, name: str, store: dict[str, str], reason: str, remedy: str
    ) -> None:
        wrong = {key: base64.b64encode(b"not-the-right-one").decode() for key in ("accessKey", "secretKey")}
        space.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "wrong"}, "data": wrong})
        whole = {"endpoint": ENDPOINT, "bucket": BUCKET, "credentialsSecret": SECRET} | store
        apply(space, name, snapshots__store=whole)
        found = space.wait_condition(name, "SnapshotsDegraded", within_s=60)
        assert found["reason"] == reason
        assert remedy in found["message"]
        assert remedy in "\n".join(space.told(name, "SnapshotsDegraded"))
        assert incarnations(space, name) == {1}
        space.kubectl("delete", "cprjob", name, "--wait=false")

    def test_a_damaged_save_is_passed_over_and_the_older_one_charged(self, cluster: Cluster, space: Space) -> None:
        run = Run.start(space, "damaged", data=SYNTHETIC | {"samples": 240_000}, snapshots__interval__seconds=8)

        # The leader is asked, because the status tells of an anchor so late that the next one may be there by the kill.
        def two_anchors() -> list[dict[str, Any]] | None:
            found: list[dict[str, Any]] = run.leader_report().get("anchors", [])
            return found[-2:] if len(found) >= 2 else None

        older, newest = until("there are two anchors", two_anchors, 90)
        saved = json.loads(cluster.store.get(newest["key"]))["shards"][1]["key"]
        cluster.store.corrupt(json.loads(cluster.store.get(saved))["parts"][0]["key"])
        cluster.nodes.signal(run.pod("shard", 1), "KILL")
        status = run.finish()
        verify(run, status, replaced={("shard", 1)})
        first, _ = account(cluster.store, status)[1][0]
        assert first == older["samples"]
        assert ledger(status) == account(cluster.store, status)
        assert "part" in "\n".join(space.told("damaged", "SnapshotsDegraded"))


class TestTheData:
    def test_rows_that_are_not_criteo_fail_the_job_with_line_and_column(self, cluster: Cluster, space: Space) -> None:
        good = "\t".join(["1", *map(str, range(13)), *(f"{i:08x}" for i in range(26))])
        lines = [good] * 5
        lines[3] = good.replace("\t7\t", "\tseven\t", 1)
        cluster.store.put("data/bad.tsv", "\n".join(lines).encode())
        data = {"format": "Criteo", "uri": f"s3://{BUCKET}/data/bad.tsv", "epochs": 1, "batchSize": 128}
        apply(space, "bad-rows", data=data)
        failed = space.wait_condition("bad-rows", "Failed", within_s=60)
        assert failed["reason"] == "BadData"
        assert "line 4" in failed["message"]
        assert "column 9" in failed["message"]
        assert "line 4" in "\n".join(space.told("bad-rows", "Failed"))
        assert {pod.incarnation for pod in space.pods(job="bad-rows", role="trainer")} == {1}


class TestTheCluster:
    def test_an_image_that_cannot_be_pulled_is_named(self, space: Space) -> None:
        apply(space, "no-image", image="localhost/not-there:1")
        found = space.wait_condition("no-image", "PodsReady", "False", within_s=30)
        found = space.wait_job(
            "no-image", "says why", lambda job: "Pull" in condition(job, "PodsReady").get("reason", ""), within_s=30
        )
        message = condition(found, "PodsReady")["message"]
        assert "localhost/not-there:1" in message
        assert "spec.image" in message
        said = "\n".join(space.told("no-image", "PodStuck"))
        assert "localhost/not-there:1" in said
        assert "spec.image" in said
        assert incarnations(space, "no-image") == {1}

    def test_a_quota_holds_pods_back_until_it_is_raised(self, space: Space) -> None:
        space.apply(_quota("2"))
        # Until its controller has seen the quota, the API server refuses pods with other words.
        in_force = ("get", "resourcequota", "q", "-o", "jsonpath={.status.hard.pods}")
        until("the quota is in force", lambda: space.kubectl(*in_force) == "2", 30)
        apply(space, "crowded")
        found = space.wait_job(
            "crowded",
            "is refused",
            lambda job: condition(job, "PodsReady").get("reason") == "CreateRefused",
            within_s=30,
        )
        assert "exceeded quota" in condition(found, "PodsReady")["message"]
        assert "free quota" in condition(found, "PodsReady")["message"]
        said = "\n".join(space.told("crowded", "Refused"))
        assert "exceeded quota" in said
        assert "free quota" in said
        space.apply(_quota("20"))
        job = space.wait_job(
            "crowded", "ends", lambda job: job["status"].get("phase") in {"Succeeded", "Failed"}, within_s=120
        )
        assert (job["status"]["phase"], job["status"].get("failures", [])) == ("Succeeded", [])

    def test_more_shards_than_rows_are_refused_when_applied(self, space: Space) -> None:
        with pytest.raises(KubectlError, match="must not exceed the number of rows"):
            apply(space, "thin", model__tables=[{"name": "only", "rows": 1}])


def _quota(pods: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": pods}}}
