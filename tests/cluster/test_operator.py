"""The elected replica of the operator dies during a recovery: its successor completes it."""

from cluster.harness import Cluster, Space, until
from cluster.jobs import LOSSLESS, Run, account, verify_stopped


def test_killed_operator_is_succeeded_and_the_recovery_ends_once(cluster: Cluster, space: Space) -> None:
    run = Run.endless(space, "headless", **LOSSLESS)
    victim, elected, holder = run.pod("shard", 1), cluster.elected_operator(), cluster.lease()["holderIdentity"]

    def inject() -> None:
        with cluster.nodes.cordoned():  # the shard's successor waits for a node, so the recovery is not over
            cluster.nodes.signal(victim, "KILL")
            until("shard 1 has a successor", lambda: run.pod("shard", 1).incarnation == 2, 120)
            cluster.nodes.signal(elected, "KILL")
            until("another replica is elected", lambda: cluster.lease()["holderIdentity"] not in {"", holder}, 60)
            assert run.status()["recovery"]

    assert run.recover_from("two kills", inject) == [("shard", 1, 1, "Killed")]
    run.train_on()
    status = verify_stopped(run, cluster.store, replaced={("shard", 1)})
    assert (status["restarts"], status["shards"][1]["incarnation"], status["budget"]["spent"]) == (1, 2, 0)
    assert not any(account(cluster.store, status).values())
    cluster.wait_operator()
