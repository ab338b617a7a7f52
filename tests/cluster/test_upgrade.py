"""The operator is upgraded, and taken back, while a job trains: pods keep their image, and read what they are told."""

import json
from typing import Any

import pytest

from cluster.harness import Cluster, Space
from cluster.jobs import MANY_EPOCHS, Run, account, failures, ledger, verify_members

pytestmark = [pytest.mark.realdata, pytest.mark.usefixtures("clicks"), pytest.mark.timeout(300, func_only=True)]


def replace_shard(run: Run, index: int) -> None:
    """Delete a shard's pod by force, and wait until the job trains with its successor."""
    victim = run.pod("shard", index)
    run.space.delete_pod(victim.name, force=True)

    def trains(status: dict[str, Any]) -> bool:
        member = status["shards"][index]
        return member["uid"] not in {"", victim.uid} and member["state"] == "Ready" and status["phase"] == "Running"

    run.wait(f"trains with shard {index} replaced", trains, within_s=90)


def versions(run: Run) -> set[int]:
    """Return the contract versions of all rosters of the job's newest pods."""
    return {json.loads(run.pod(role, index).roster)["contract"] for role, index in run.uids()}


class TestUpgrade:
    def test_an_operator_of_the_next_contract_version_goes_on_with_the_job_and_so_does_the_one_before(
        self, cluster: Cluster, space: Space
    ) -> None:
        run = Run.start(space, "upgraded", data__epochs=MANY_EPOCHS)
        before = versions(run)
        with cluster.newer_operator():
            (operator,) = {pod.raw["spec"]["containers"][0]["image"] for pod in cluster.operator_pods()}
            assert operator == "localhost/cprjob-operator-next:dev"
            replace_shard(run, 1)
            assert versions(run) == before
        replace_shard(run, 2)
        verify_members(run, run.status(), replaced={("shard", 1), ("shard", 2)})
        status = run.stop()
        assert [each[:3] for each in failures(status)] == [("shard", 1, 1), ("shard", 2, 1)]
        assert ledger(status) == account(cluster.store, status)
