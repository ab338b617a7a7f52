"""Whether containers of shards begin again in their pods: the cluster is asked when a job starts, and that stays."""

from __future__ import annotations

from typing import Any

import pytest

from cpr_operator.cluster.protocol import Manifest
from cpr_operator.controller import Controller
from support.house import House


class Server:
    """What the API server can do, and the pods that it was given."""

    def __init__(self, house: House, *, has: bool) -> None:
        self.has, self.asked = has, 0
        self.pods: list[Manifest] = []
        place = house.cluster.place

        def seen(manifest: Manifest) -> Any:
            self.pods.append(manifest)
            return place(manifest)

        house.cluster.place = seen
        house.controller = Controller(house.cluster, lambda: house.cluster.now, restart_rules=self.has_rules)

    async def has_rules(self) -> bool:
        self.asked += 1
        return self.has

    def with_rules(self) -> set[str]:
        """The roles of the pods whose main containers have rules."""
        mains = ((pod["metadata"]["labels"]["cprjob.io/role"], pod["spec"]["containers"][0]) for pod in self.pods)
        return {role for role, main in mains if "restartPolicyRules" in main}


@pytest.mark.parametrize("has", [True, False])
async def test_shards_have_restart_rules_if_the_cluster_knows_them_when_the_job_starts_or_resumes(*, has: bool) -> None:
    house = House()
    server = Server(house, has=has)
    await house.go(8)
    assert house.status.phase == "Running"
    assert server.with_rules() == ({"shard"} if has else set())
    assert house.status.runtime is not None
    assert house.status.runtime.restart_rules is has
    asked, server.has = server.asked, not has
    house.cluster.kill("shard", 1)
    await house.go(8)
    assert len(server.pods) > 5
    assert server.with_rules() == ({"shard"} if has else set()), "as it began"
    assert server.asked == asked
    house.cluster.set_spec("job", suspend=True)
    await house.go(20)
    suspended = house.status
    assert suspended.phase == "Suspended"
    server.pods.clear()
    house.cluster.set_spec("job", suspend=False)
    await house.go(12)
    assert house.status.phase == "Running"
    assert server.with_rules() == (set() if has else {"shard"}), "a job that resumes asks again"
