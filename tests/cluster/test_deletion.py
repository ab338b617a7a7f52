"""Jobs that are deleted with their saves, on the real cluster, and what must not happen to others' saves."""

import os
from typing import Any

import pytest

from cluster.harness import Cluster, Space, until
from cluster.jobs import Run, verify

pytestmark = pytest.mark.timeout(300, func_only=True)

ENDLESS = {"format": "Synthetic", "samples": 20_000_000, "batchSize": 128, "seed": 1}
SHORT = ENDLESS | {"samples": 30_000}


def start(space: Space, name: str, *, delete_with_job: bool = True, **changes: Any) -> Run:
    small = {"data": ENDLESS, "trainers__replicas": 1, "shards__replicas": 2}
    return Run.start(space, name, snapshots__deleteWithJob=delete_with_job, **small | changes)


def wait_for_anchor(run: Run) -> str:
    """Wait for one; return the prefix of the job's objects."""
    run.wait("has an anchor", lambda status: bool(status.get("anchors")), within_s=90)
    return run.uid() + "/"


def delete(run: Run) -> None:
    """Delete the job and wait until it is gone."""
    run.delete()
    run.wait_until_gone()


class TestWithItsSaves:
    def test_the_saves_of_a_deleted_job_go_and_those_of_others_stay(self, cluster: Cluster, space: Space) -> None:
        other, doomed = start(space, "bystander", delete_with_job=False), start(space, "doomed")
        kept, prefix = wait_for_anchor(other), wait_for_anchor(doomed)
        assert cluster.store.keys(prefix)
        delete(doomed)
        assert cluster.store.keys(prefix) == ()
        assert "deleted" in "\n".join(space.told("doomed", "SavesDeleted"))
        until("its pods are gone", lambda: not space.pods(job="doomed"), 30)
        assert other.uids() == other.before
        delete(other)
        until("its pods are gone", lambda: not space.pods(job="bystander"), 60)
        assert any(key.endswith("manifest.json") for key in cluster.store.keys(kept)), "nobody said they may go"
        cluster.store.delete(kept)

    def test_a_killed_operator_goes_on_where_it_was(self, cluster: Cluster, space: Space) -> None:
        run = start(space, "unwatched")
        prefix = wait_for_anchor(run)
        run.delete()
        until("its pods are being deleted", lambda: any(p.deleting for p in space.pods(job=run.name)), 30, every_s=0.05)
        cluster.kill_operator()
        run.wait_until_gone()
        assert cluster.store.keys(prefix) == ()

    def test_what_another_job_restores_from_stays(self, cluster: Cluster, space: Space) -> None:
        first = start(space, "yesterday", data=SHORT)
        result = first.finish()["result"]["key"]
        prefix = first.uid() + "/"
        seldom = {"mode": "Fixed", "seconds": 3600}  # with an anchor of its own it needs its origin no more
        heir = start(space, "today", delete_with_job=False, snapshots__restoreFrom=result, snapshots__interval=seldom)
        before = set(cluster.store.keys(prefix))
        delete(first)
        after = set(cluster.store.keys(prefix))
        assert result in after < before
        assert result in "\n".join(space.told("yesterday", "SavesDeleted"))
        again = start(space, "today-again", data=SHORT, snapshots__restoreFrom=result)
        verify(again, again.finish(), replaced=())
        for run in (heir, again):
            delete(run)
        cluster.store.delete(prefix)


class TestANamespace:
    def test_a_namespace_that_is_deleted_waits_for_nothing(self, cluster: Cluster) -> None:
        space = cluster.space(f"deletion-namespace-{os.getpid()}")
        run = start(space, "homeless")
        prefix = wait_for_anchor(run)
        space.all("delete", "namespace", space.name, "--wait=false")
        gone = lambda: not space.all("get", "namespace", space.name, "--ignore-not-found", "-o", "name").strip()  # noqa: E731
        until("the namespace is gone", gone, 90, every_s=0.5)
        cluster.store.delete(prefix)
