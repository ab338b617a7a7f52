"""The store goes away under a job that trains, and comes back."""

from cluster.harness import Cluster, Space, until
from cluster.harness.space import condition
from cluster.jobs import Run, failures, verify_stopped


def test_unavailable_store_stops_saves_and_restores_alone(cluster: Cluster, space: Space) -> None:
    run = Run.endless(space, "outage")
    anchors = run.wait("is saved", lambda status: bool(status.get("anchors")), within_s=60)["anchors"]
    with cluster.store_down():
        degraded = space.wait_condition("outage", "SnapshotsDegraded", within_s=180)
        assert degraded["reason"] == "StoreUnreachable"
        assert "a shard that is lost now goes back to sample" in degraded["message"]
        run.train_on()
        cluster.nodes.signal(run.pod("shard", 1), "KILL")

        def waits() -> bool:
            return "StoreUnreachable" in str((run.report("shard", 1) or {}).get("problem"))

        until("the new shard reports why it waits", waits, 180)
        assert condition(space.job("outage"), "Recovering")["status"] == "True"
        waiting = run.pod("shard", 1).uid
    run.wait("is whole", lambda status: status["phase"] == "Running" and status.get("recovery") is None, within_s=180)
    space.wait_condition("outage", "SnapshotsDegraded", "False", within_s=180)
    newest = anchors[-1]["samples"]
    run.wait("is saved again", lambda status: status["anchors"][-1]["samples"] > newest)
    assert run.pod("shard", 1).uid == waiting
    assert space.wait_for_event("outage", "SnapshotsDegraded")
    status = verify_stopped(run, cluster.store, replaced={("shard", 1)})
    assert failures(status) == [("shard", 1, 1, "Killed")]
    assert status["counters"]["generation"] == 1
