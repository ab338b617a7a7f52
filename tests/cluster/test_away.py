"""Jobs go on while the control plane is away, and what they did meanwhile is not undone when it returns."""

import os
import re
import time
from datetime import datetime

import pytest

from cluster.harness import Cluster, Space, until
from cluster.harness.control import ControlPlane
from cluster.jobs import MANY_EPOCHS, Run, failures

pytestmark = [pytest.mark.realdata, pytest.mark.usefixtures("clicks"), pytest.mark.timeout(480, func_only=True)]

#: Longer than a trainer needs to end, once its last anchor is there.
ENDS_S = 5
EPOCHS = 6
KEEP = 2


def anchored(cluster: Cluster, uid: str) -> set[int]:
    """The steps of all anchors of a job's first generation."""
    keys = "\n".join(cluster.store.keys(f"{uid}/gen-0001/dense/"))
    return {int(step) for step in re.findall(r"/step-(\d+)/manifest\.json$", keys, re.MULTILINE)}


def ends(run: Run) -> list[float]:
    """When the processes of the trainers' pods ended, in seconds since 1970."""
    path = "{.items[*].status.containerStatuses[*].state.terminated.finishedAt}"
    chosen = f"cprjob.io/job={run.name},cprjob.io/role=trainer"
    told = run.space.kubectl("get", "pods", "-l", chosen, "-o", f"jsonpath={path}").split()
    return [datetime.fromisoformat(each).timestamp() for each in told]


@pytest.mark.skipif(os.environ.get("CPR_CLUSTER_OPERATOR") == "no", reason="no operator is installed")
class TestAway:
    def test_a_job_that_ends_while_the_api_server_is_down_has_succeeded(self, cluster: Cluster, space: Space) -> None:
        if cluster.nodes.backend != "bare":
            pytest.skip("kind has the API server in a container of its own")
        run = Run.start(space, "unheard", data__epochs=EPOCHS, shards__replicas=2)
        run.reach(0.3)
        uid, last = run.uid(), -(-run.total() // 128)
        control = ControlPlane(cluster.nodes.scripts, cluster.kubectl)
        with control.down("apiserver"):
            until("its last anchor is there", lambda: last in anchored(cluster, uid), 120, every_s=1)
            time.sleep(ENDS_S)
            back = time.time()
        control.hasten()
        status = run.finish()
        assert failures(status) == []
        assert (status["counters"]["generation"], status["counters"]["group"]) == (1, 1)
        # The leader's end is enough for the operator; the other kubelet may tell a moment later.
        until("all ends are told", lambda: len(ends(run)) == len(status["trainers"]), 60)
        assert max(ends(run)) < back, "it was over before the API server was back"

    def test_a_job_goes_back_to_an_anchor_from_before_the_operator_was_away(
        self, cluster: Cluster, space: Space
    ) -> None:
        run = Run.start(
            space,
            "stale",
            accuracyBudget={"portionOfLostSamples": 0},
            data__epochs=MANY_EPOCHS,
            shards__replicas=2,
            snapshots__keep=KEEP,
            snapshots__interval={"mode": "Fixed", "seconds": 2},
        )
        run.wait("has anchors", lambda status: len(status.get("anchors", ())) == KEEP)
        cluster.stop_operator()
        try:
            uid, known = run.uid(), run.status()["anchors"]

            def later() -> bool:
                return len([step for step in anchored(cluster, uid) if step > known[-1]["step"]]) > KEEP

            until("newer anchors are saved than may stay", later, 90, every_s=1)
            for pod in space.pods():
                space.delete_pod(pod.name, force=True)
        finally:
            cluster.start_operator()
        run.wait("is back", lambda status: status["counters"]["generation"] == 2 and status["phase"] == "Running", 120)
        assert run.status()["forks"][-1]["anchor"]["samples"] in {anchor["samples"] for anchor in known}
