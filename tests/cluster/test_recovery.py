"""Pods that are lost on the cluster: they alone are replaced, and what they lost is in the ledger."""

from cluster.harness import Cluster, Space
from cluster.jobs import LOSSLESS, Run, account, verify_stopped


def test_deleted_shard_is_replaced_alone_and_loses_nothing(cluster: Cluster, space: Space) -> None:
    run = Run.endless(space, "deleted", **LOSSLESS, shards__replicas=3)
    victim = run.pod("shard", 1)
    failures = run.recover_from("the deletion", lambda: space.delete_pod(victim.name, force=True))
    assert failures == [("shard", 1, 1, "Vanished")]
    run.train_on()
    status = verify_stopped(run, cluster.store, replaced={("shard", 1)})
    assert (status["budget"]["spent"], status["budget"]["rollbacks"], status["restarts"]) == (0, 0, 1)
    assert account(cluster.store, status) == {0: (), 1: (), 2: ()}
    assert space.wait_for_event("deleted", "MemberLost")
    assert space.wait_for_event("deleted", "Replacing")


def test_trainer_and_shard_lost_in_a_row_recover_one_after_the_other(cluster: Cluster, space: Space) -> None:
    run = Run.endless(space, "in-a-row", trainers__replicas=2, recovery=LOSSLESS["recovery"])
    leader, shard = run.leader(), run.pod("shard", 0)
    trainer = run.pod("trainer", leader)

    def inject() -> None:
        cluster.nodes.signal(trainer, "KILL")
        run.wait("misses its leader", lambda status: bool(status.get("failures")), within_s=120)
        cluster.nodes.signal(shard, "KILL")

    failures = run.recover_from("both losses", inject, failures=2)
    assert failures == [("trainer", leader, 1, "Killed"), ("shard", 0, 1, "Killed")]
    assert run.leader() != leader
    run.train_on()
    status = verify_stopped(run, cluster.store, replaced={("trainer", leader), ("shard", 0)})
    assert (status["counters"]["generation"], status["budget"]["rollbacks"]) == (1, 0)
