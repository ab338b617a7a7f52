"""Full recovery on the real cluster: whoever dies, all go back, and no other pod is touched."""

from typing import Any

import pytest

from cluster.harness import Cluster, Space
from cluster.jobs import Run, account, failures, same_auc, verify

pytestmark = [pytest.mark.realdata, pytest.mark.usefixtures("clicks"), pytest.mark.timeout(240, func_only=True)]


def delete_and_recover(run: Run, shard: int) -> dict[str, Any]:
    """Delete a shard by force, and wait until training goes on without it being missed; return the status then."""
    before = len(failures(run.status()))
    run.space.delete_pod(run.pod("shard", shard).name, force=True)
    return run.wait(
        f"is over the loss of shard {shard}",
        lambda status: len(failures(status)) > before and status.get("recovery") is None,
    )


class TestFullRecovery:
    def test_p_full_recovery_rolls_back_and_leaves_every_other_pod_alone(
        self, cluster: Cluster, space: Space, calm: dict[str, Any]
    ) -> None:
        run = Run.start(space, "whole", recovery={"mode": "Full"})
        run.slow_down()
        run.reach(0.2)
        status = delete_and_recover(run, 1)
        run.speed_up()
        assert status["plan"]["mode"] == "Full"
        status = run.finish()
        verify(run, status, replaced={("shard", 1)})
        assert failures(status) == [("shard", 1, 1, "Vanished")]
        assert (status["budget"]["rollbacks"], status["counters"]["generation"]) == (1, 2)
        assert status["budget"]["spent"] == 0
        assert status["overhead"]["lostSeconds"] > 0
        assert not any(account(cluster.store, status).values())
        assert same_auc(status, calm)
