"""Suspended with four shards and resumed with two, on the real cluster: nothing is lost on the way."""

from typing import Any

import pytest

from cluster.harness import Cluster, Space, until
from cluster.harness.kubectl import KubectlError
from cluster.jobs import NO_SAVES, Run, account, failures, ledger, same_auc, verify

pytestmark = [pytest.mark.realdata, pytest.mark.usefixtures("clicks"), pytest.mark.timeout(300, func_only=True)]


def test_a_job_goes_on_with_fewer_shards_and_one_of_these_is_killed(
    cluster: Cluster, space: Space, calm: dict[str, Any]
) -> None:
    run = Run.start(space, "fewer", snapshots__interval=NO_SAVES)
    run.reach(0.1)
    with pytest.raises(KubectlError, match=r"spec.shards.replicas: can only be changed while the job is suspended"):
        space.patch("fewer", '{"spec":{"shards":{"replicas":2}}}')
    space.patch("fewer", '{"spec":{"suspend":true}}')
    suspended = run.wait("is suspended", lambda status: status.get("phase") == "Suspended", within_s=60)
    until("no pod is left", lambda: not space.pods(job="fewer"), 30)
    anchor = suspended["anchors"][-1]
    assert {member["savedSamples"] for member in suspended["shards"]} == {anchor["samples"]}
    space.patch("fewer", '{"spec":{"shards":{"replicas":2}}}')
    space.patch("fewer", '{"spec":{"suspend":false}}')
    resumed = run.wait("trains again", lambda status: status.get("phase") == "Running", within_s=90)
    assert [member["incarnation"] for member in resumed["shards"]] == [2, 2]
    assert {pod.index for pod in space.pods(job="fewer", role="shard")} == {0, 1}
    run.before = run.uids()
    run.slow_down()
    run.reach(0.05, after=anchor)
    cluster.nodes.signal(run.pod("shard", 1), "KILL")
    run.speed_up()
    status = run.finish()
    verify(run, status, replaced={("shard", 1)})
    assert failures(status) == [("shard", 1, 2, "Killed")]
    assert status["forks"][-1]["anchor"] == anchor
    assert (status["counters"]["generation"], status["budget"]["rollbacks"]) == (2, 0)
    assert status["failures"][0]["lostSamples"] > 0
    assert ledger(status) == account(cluster.store, status)
    assert same_auc(status, calm)
