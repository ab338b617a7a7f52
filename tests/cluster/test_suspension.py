"""Suspended and resumed on the real cluster: no pod is left, nothing is lost, whatever becomes of the operator."""

from typing import Any

import pytest

from cluster.harness import Cluster, Space, until
from cluster.jobs import Run, failures, same_auc, verify

pytestmark = [pytest.mark.realdata, pytest.mark.usefixtures("clicks"), pytest.mark.timeout(240, func_only=True)]
#: So small that a loss of any step would roll the job back.
NO_LOSS = {"portionOfLostSamples": 0.0001}


def resume_and_finish(run: Run, calm: dict[str, Any]) -> None:
    until("no pod is left", lambda: not run.space.pods(job=run.name), 30)
    run.space.patch(run.name, '{"spec":{"suspend":false}}')
    status = run.finish()
    verify(run, status, replaced=run.before)
    assert (failures(status), status["budget"]["spent"], status["counters"]["generation"]) == ([], 0, 1)
    assert {member["incarnation"] for member in (*status["shards"], *status["trainers"])} == {2}
    # Events have no order within a second.
    assert run.space.told(run.name, "Suspended")
    assert run.space.told(run.name, "Resumed")
    assert same_auc(status, calm)


class TestSuspension:
    def test_a_suspended_job_keeps_no_pod_and_loses_nothing(self, space: Space, calm: dict[str, Any]) -> None:
        run = Run.start(space, "paused", accuracyBudget=NO_LOSS, ttlSecondsAfterFinished=3600)
        run.reach(0.3)
        space.patch("paused", '{"spec":{"suspend":true}}')
        status = run.wait("is suspended", lambda status: status.get("phase") == "Suspended", within_s=60)
        assert {member["state"] for member in (*status["shards"], *status["trainers"])} == {"Pending"}
        resume_and_finish(run, calm)
        space.patch("paused", '{"spec":{"ttlSecondsAfterFinished":1}}')
        until("the job is gone", lambda: not space.kubectl("get", "cprjob", "paused", "--ignore-not-found"), 40)

    def test_an_operator_that_dies_while_pods_save_misses_nothing(
        self, cluster: Cluster, space: Space, calm: dict[str, Any]
    ) -> None:
        run = Run.start(space, "unwatched", accuracyBudget=NO_LOSS)
        run.reach(0.3)
        space.patch("unwatched", '{"spec":{"suspend":true}}')
        run.wait("is being suspended", lambda status: status.get("phase") == "Suspending", within_s=30)
        cluster.kill_operator()

        def told() -> bool:
            return any('"stop":true' in pod.roster for pod in space.pods(job="unwatched", role="shard"))

        until("shards are told to stop", told, within_s=60, every_s=0.02)
        cluster.kill_operator()
        run.wait("is suspended", lambda status: status.get("phase") == "Suspended", within_s=90)
        resume_and_finish(run, calm)
