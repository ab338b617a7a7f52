"""Ten minutes of training on the cluster with twelve failures, and where the time went."""

from typing import cast

import pytest

from cluster.harness import Cluster, Space
from cluster.harness.space import Role
from cluster.jobs import LOSSLESS, Member, Run, verify_stopped

pytestmark = pytest.mark.timeout(1500, func_only=True)

FAILURES, EVERY_S = 12, 50
#: In turn: a process that its pod restarts, or all of a pod.
KINDS = (("shard", "process"), ("trainer", "process"), ("shard", "pod"), ("trainer", "pod"))


def test_ten_minutes_with_twelve_failures_are_productive_for_95_percent(cluster: Cluster, space: Space) -> None:
    run = Run.endless(
        space,
        "goodput",
        **LOSSLESS,
        trainers__replicas=2,
        snapshots__interval={"mode": "Fixed", "seconds": 10},
        failurePolicy={"restartLimit": {"count": 50}},
    )
    replaced: set[Member] = set()
    for number in range(FAILURES):
        accounted(run, number * EVERY_S)
        role, lost = cast("tuple[Role, str]", KINDS[number % len(KINDS)])
        victim = run.pod(role, run.leader() if role == "trainer" else number % 2)
        if lost == "pod":
            replaced.add((role, victim.index))
            run.recover_from(f"failure {number}", lambda: cluster.nodes.signal(victim, "KILL"))  # noqa: B023 -- now
        else:
            run.recover_from(f"failure {number}", lambda: cluster.nodes.kill_child(victim))  # noqa: B023 -- now
    accounted(run, FAILURES * EVERY_S)
    goodput = run.status()["goodput"]
    status = verify_stopped(run, cluster.store, replaced)
    assert (len(status["failures"]), status["budget"]["spent"], status["budget"]["rollbacks"]) == (FAILURES, 0, 0)
    assert goodput["ratio"] > 0.95, goodput


def accounted(run: Run, seconds: float) -> None:
    """Wait until this much time of the job is accounted."""
    run.wait(
        f"is {seconds} s old",
        lambda status: status.get("goodput", {}).get("wallSeconds", 0.0) >= seconds,
        within_s=3 * EVERY_S,
    )
