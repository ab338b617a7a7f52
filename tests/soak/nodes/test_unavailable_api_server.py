"""Jobs continue without a control plane, and their progress is not undone when it returns."""

import os
import re

import pytest

from cluster.harness import Cluster, Space, until
from cluster.harness.control import ControlPlane
from cluster.jobs import ENDLESS, Run, failures

pytestmark = [
    pytest.mark.timeout(480, func_only=True),
    pytest.mark.skipif(os.environ.get("CPR_CLUSTER_OPERATOR") == "no", reason="no operator is installed"),
]

SAMPLES = 200_000
KEEP = 2


def anchored(cluster: Cluster, uid: str) -> set[int]:
    """The steps of all anchors of a job's first generation."""
    keys = "\n".join(cluster.store.keys(f"{uid}/gen-0001/dense/"))
    return {int(step) for step in re.findall(r"/step-(\d+)/manifest\.json$", keys, re.MULTILINE)}


def test_job_that_ends_during_an_outage_of_the_api_server_succeeds(cluster: Cluster, space: Space) -> None:
    if cluster.nodes.backend != "bare":
        pytest.skip("kind has the API server in a container of its own")
    run = Run.endless(space, "unheard", data=ENDLESS | {"samples": SAMPLES}, trainers__replicas=2)
    run.slow_down()
    run.reach(0.1)
    uid, last = run.uid(), -(-SAMPLES // ENDLESS["batchSize"])
    control = ControlPlane(cluster.nodes.scripts, cluster.kubectl)
    trainers = space.pods(job=run.name, role="trainer")
    run.speed_up()
    with control.down("apiserver"):
        until("its last anchor is there", lambda: last in anchored(cluster, uid), 120, every_s=1)
        until("its trainers have ended", lambda: not any(map(cluster.nodes.runs, trainers)), 60)
    control.hasten()
    status = run.finish()
    assert failures(status) == []
    assert (status["counters"]["generation"], status["counters"]["group"]) == (1, 1)


def test_job_rolls_back_to_an_anchor_before_the_outage_of_the_operator(cluster: Cluster, space: Space) -> None:
    run = Run.endless(
        space,
        "stale",
        accuracyBudget={"portionOfLostSamples": 0},
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
