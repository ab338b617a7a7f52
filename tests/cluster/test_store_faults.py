"""Faults of the store under jobs that train, on the real cluster: training goes on, saves come again, all is told."""

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster.harness import Cluster, Space, until
from cluster.harness.space import Role, condition
from cluster.harness.store import BUCKET, ENDPOINT, SECRET
from cluster.jobs import Run, account, failures, ledger, verify

pytestmark = pytest.mark.timeout(300, func_only=True)

#: More than any of these tests trains.
ENDLESS = {"format": "Synthetic", "samples": 20_000_000, "batchSize": 128, "seed": 1}
VANISHING = "vanishing"
#: More trainers than failures that a job survives by default.
MANY = 12
MUCH, MUCH_KEY = 40_000, "data/much.parquet"
OLD, NEW = ("first-user", "first-secret-of-these"), ("second-user", "second-secret-of-these")


def start(space: Space, name: str, **changes: Any) -> Run:
    return Run.start(space, name, **{"data": ENDLESS, "trainers__replicas": 1, "shards__replicas": 2} | changes)


def store(**changes: str) -> dict[str, str]:
    return {"endpoint": ENDPOINT, "bucket": BUCKET, "credentialsSecret": SECRET} | changes


def newest(run: Run) -> int:
    """Samples of the newest anchor that the status knows; -1 before there is one."""
    return max((int(anchor["samples"]) for anchor in run.status().get("anchors", ())), default=-1)


def wait_for_anchor(run: Run, after: int = -1) -> None:
    until(f"{run.name} has an anchor after sample {after}", lambda: newest(run) > after, 90)


def samples(run: Run) -> int:
    report = run.report("trainer", 0)
    return int(report["samples"]) if report else -1


def goes_on(run: Run) -> None:
    """Wait until more is trained than now, and that twice."""
    for _ in range(2):
        now = samples(run)
        until(f"{run.name} trains on", lambda now=now: samples(run) > now, 60)


def problem(run: Run, role: Role, index: int) -> str:
    """What a member says is wrong."""
    report = run.report(role, index)
    return str((report or {}).get("problem") or "")


def degraded(run: Run) -> dict[str, Any]:
    return condition(run.space.job(run.name), "SnapshotsDegraded")


def untouched(run: Run) -> bool:
    """Whether no pod was replaced, nor its process restarted."""
    status = run.status()
    return (run.uids(), failures(status), status["counters"]["generation"]) == (run.before, [], 1)


class TestTheStoreIsDown:
    @pytest.mark.timeout(500, func_only=True)
    def test_training_goes_on_a_new_shard_waits_and_a_deletion_gives_up(self, cluster: Cluster, space: Space) -> None:
        run, stuck = start(space, "outage"), start(space, "stuck", snapshots__deleteWithJob=True)
        # On a quiet machine a job trains 10,000 samples a second: the store takes some seconds to go.
        orphaned = start(space, "orphaned", data=ENDLESS | {"samples": 300_000})
        for each in (run, stuck, orphaned):
            wait_for_anchor(each)
        run.slow_down()
        saves = f"{stuck.uid()}/"
        with cluster.store_down():
            stuck.delete()  # it takes longest: all else happens meanwhile
            cluster.nodes.signal(orphaned.pod("shard", 1), "KILL")
            said = space.wait_condition(run.name, "SnapshotsDegraded", within_s=90)
            assert said["reason"] == "StoreUnreachable"
            assert "a shard that is lost now goes back to sample" in said["message"]
            before = newest(run)
            until("the new shard says why it waits", lambda: "StoreUnreachable" in problem(orphaned, "shard", 1), 90)
            assert space.wait_condition(orphaned.name, "SnapshotsDegraded")["reason"] == "StoreUnreachable"
            assert condition(space.job(orphaned.name), "Recovering")["status"] == "True"
            waiting = orphaned.pod("shard", 1).uid
            stuck.wait_until_gone(within_s=280)
            told = "\n".join(space.told(stuck.name, "SavesLeft"))
            assert "does not answer" in told
            where = "s3://cprjob --endpoint http://minio.cprjob-store:9000"
            assert f"cprjob snapshots prune {where} --job {saves[:-1]}" in told
            assert orphaned.pod("shard", 1).uid == waiting, "it goes on waiting"
            goes_on(run)
            still = degraded(run)
            assert (still["status"], still["lastTransitionTime"]) == ("True", said["lastTransitionTime"])
            assert newest(run) == before
        assert cluster.store.keys(saves)
        cluster.store.delete(saves)
        space.wait_condition(run.name, "SnapshotsDegraded", "False", within_s=90)
        wait_for_anchor(run, before)
        assert untouched(run)
        assert space.told(run.name, "SnapshotsDegraded")
        run.delete()
        status = orphaned.finish()
        verify(orphaned, status, replaced={("shard", 1)})
        assert status["shards"][1]["uid"] == waiting
        assert failures(status) == [("shard", 1, 1, "Killed")]
        assert ledger(status) == account(cluster.store, status)
        assert condition(space.job(orphaned.name), "SnapshotsDegraded")["status"] == "False"


class TestTheStoreIsDownWhileDataIsRead:
    @pytest.fixture
    def data(self, cluster: Cluster, tmp_path: Path) -> Iterator[dict[str, Any]]:
        """Rows of which a trainer's two windows hold a tenth."""
        random = np.random.default_rng(1)
        columns = {"click": random.integers(2, size=MUCH), "age": random.integers(100, size=MUCH)}
        columns |= {name: random.integers(1000, size=MUCH) for name in ("user", "item")}
        pq.write_table(pa.table(columns), tmp_path / "much.parquet", row_group_size=1000)
        cluster.store.put(MUCH_KEY, (tmp_path / "much.parquet").read_bytes())
        yield {
            "format": "Parquet",
            "uri": f"s3://{BUCKET}/{MUCH_KEY}",
            "columns": {"labels": ["click"], "counts": ["age"], "categories": ["user", "item"]},
            "epochs": 1,
            "batchSize": 240,
            "shuffleRows": 2048,
            "seed": 1,
        }
        cluster.store.delete(MUCH_KEY)

    @pytest.mark.timeout(700, func_only=True)
    def test_trainers_wait_for_their_rows_and_none_is_replaced(
        self, cluster: Cluster, space: Space, data: dict[str, Any]
    ) -> None:
        tables = [{"name": name, "rows": 1000} for name in ("user", "item")]
        run = start(space, "reading", data=data, trainers__replicas=MANY, model__tables=tables)
        run.reach(0.05)
        with cluster.store_down():
            since = time.monotonic()
            until("some trainer says what it waits for", lambda: any(_waits(run, rank) for rank in range(MANY)), 90)
            assert space.wait_condition(run.name, "SnapshotsDegraded", within_s=60)["reason"] == "StoreUnreachable"
            until("the store was away for half a minute", lambda: time.monotonic() - since > 30, 60)
        goes_on(run)
        assert untouched(run)
        assert not any(
            s["restartCount"] for p in space.pods(job=run.name) for s in p.raw["status"]["containerStatuses"]
        )
        status = run.finish(within_s=450)  # twelve trainers share what the machine has
        verify(run, status, replaced=())
        assert failures(status) == []


def _waits(run: Run, rank: int) -> bool:
    report = run.report("trainer", rank)
    return bool(report and report["state"] == "Paused" and "StoreUnreachable" in str(report["problem"]))


class TestTheBucketVanishes:
    @pytest.fixture
    def bucket(self, cluster: Cluster) -> Iterator[str]:
        cluster.store.make_bucket(VANISHING)
        yield VANISHING
        until("the bucket is gone", lambda: cluster.store.remove_bucket(VANISHING), 60)

    def test_what_comes_after_stands_on_nothing_that_went(self, cluster: Cluster, space: Space, bucket: str) -> None:
        run = start(space, "homeless", snapshots__store=store(bucket=bucket))
        wait_for_anchor(run)
        until("the bucket is gone", lambda: cluster.store.remove_bucket(bucket), 60)
        space.wait_job(
            run.name, "misses its bucket", lambda job: condition(job, "SnapshotsDegraded")["reason"] == "BucketMissing"
        )
        goes_on(run)
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

    def test_a_changed_secret_is_used_without_a_restart(self, cluster: Cluster, space: Space, users: None) -> None:
        cluster.store.add_user(*OLD)
        space.apply(_secret(*OLD))
        run = start(space, "rotated", snapshots__store=store(credentialsSecret="rotating"))
        wait_for_anchor(run)
        cluster.store.add_user(*NEW)
        cluster.store.remove_user(OLD[0])
        assert not cluster.store.knows(*OLD)
        space.wait_job(
            run.name, "is refused", lambda job: condition(job, "SnapshotsDegraded")["reason"] == "CredentialsRefused"
        )
        before = newest(run)
        goes_on(run)
        space.apply(_secret(*NEW))
        space.wait_condition(run.name, "SnapshotsDegraded", "False", within_s=150)  # the kubelet takes its time
        wait_for_anchor(run, before)
        goes_on(run)
        assert untouched(run)
        assert not any(
            s["restartCount"] for p in space.pods(job=run.name) for s in p.raw["status"]["containerStatuses"]
        )
        run.delete()


def _secret(access: str, secret: str) -> dict[str, Any]:
    data = {"accessKey": access, "secretKey": secret}
    coded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "rotating"}, "data": coded}
