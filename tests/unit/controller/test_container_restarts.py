"""Restarts of shards' containers in their pods: decided by the cluster when a job starts."""

from __future__ import annotations

from typing import Any

import pytest

from cpr_operator.cluster.protocol import Manifest
from cpr_operator.controller.controller import Controller
from support.controller_harness import ControllerHarness


class Server:
    """An API server with or without restart rules, and the created pods."""

    def __init__(self, harness: ControllerHarness, *, has: bool) -> None:
        self.has, self.requested = has, 0
        self.pods: list[Manifest] = []
        place = harness.cluster.place

        def seen(manifest: Manifest) -> Any:
            self.pods.append(manifest)
            return place(manifest)

        harness.cluster.place = seen
        harness.controller = Controller(harness.cluster, lambda: harness.cluster.now, restart_rules=self.has_rules)

    async def has_rules(self) -> bool:
        self.requested += 1
        return self.has

    def with_rules(self) -> set[str]:
        """The roles of the pods with rules for the main container."""
        mains = ((pod["metadata"]["labels"]["cprjob.io/role"], pod["spec"]["containers"][0]) for pod in self.pods)
        return {role for role, main in mains if "restartPolicyRules" in main}


@pytest.mark.parametrize("has", [True, False])
async def test_shards_have_restart_rules_if_the_cluster_supports_them_at_start_or_resume(*, has: bool) -> None:
    harness = ControllerHarness()
    server = Server(harness, has=has)
    await harness.go(8)
    assert harness.status.phase == "Running"
    assert server.with_rules() == ({"shard"} if has else set())
    assert harness.status.runtime is not None
    assert harness.status.runtime.restart_rules is has
    requested, server.has = server.requested, not has
    harness.cluster.kill("shard", 1)
    await harness.go(8)
    assert len(server.pods) > 5
    assert server.with_rules() == ({"shard"} if has else set()), "as it began"
    assert server.requested == requested
    harness.cluster.set_spec("job", suspend=True)
    await harness.go(20)
    suspended = harness.status
    assert suspended.phase == "Suspended"
    server.pods.clear()
    harness.cluster.set_spec("job", suspend=False)
    await harness.go(12)
    assert harness.status.phase == "Running"
    assert server.with_rules() == (set() if has else {"shard"}), "a job that resumes asks again"
