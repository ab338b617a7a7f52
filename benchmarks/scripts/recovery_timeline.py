"""The timeline of one recovery, observed from outside: the first time of each stage after the pod was gone."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from cluster.harness import until
from cluster.harness.space import Role
from cluster.jobs import Run

STAGES = ("seen", "created", "running", "restored", "training again")
#: Frequent enough for the times, rare enough not to disturb the measured processes.
POLL_S = 0.02


@dataclass
class Timeline:
    """Stages of one shard's recovery, in seconds since the API server no longer had its pod."""

    run: Run
    shard: int
    at: dict[str, float] = field(default_factory=dict)

    def record(self, lose: Callable[[], None], within_s: float) -> None:
        """Remove the shard by `lose`, and poll until training has resumed."""
        pod, leader = self.run.pod("shard", self.shard), self.run.report("trainer", self.run.leader())
        samples, before = leader["samples_started"] if leader else 0, len(self.run.status().get("failures", []))
        probes: dict[str, Callable[[], Any]] = {
            "seen": lambda: len(self.run.status().get("failures", [])) > before,
            "created": lambda: self._successor(pod.incarnation),
            "running": lambda: (successor := self._successor(pod.incarnation)) and successor.phase == "Running",
            "restored": lambda: self._report("shard", self.shard).get("state") == "Ready",
            "training again": lambda: self._report("trainer", self.run.leader()).get("samples", 0) > samples,
        }
        with ThreadPoolExecutor() as pool:
            losing = pool.submit(lose)
            until("the pod is gone", lambda: self.run.space.pod(pod.name) is None, within_s, POLL_S)
            deleted_s = time.monotonic()
            for stage in STAGES:
                until(stage, probes[stage], within_s, POLL_S)
                self.at[stage] = time.monotonic() - deleted_s
            losing.result()

    def table(self, what: str = "recovery of a shard") -> str:
        """Return the stages as lines of text."""
        rows = [("deleted", 0.0), *self.at.items()]
        return "\n".join([f"{what}, seconds", *(f"  {stage:<15} {at:6.2f}" for stage, at in rows)])

    def _successor(self, incarnation: int) -> Any:
        pod = self.run.find("shard", self.shard)
        return pod if pod and pod.incarnation > incarnation else None

    def _report(self, role: Role, index: int) -> dict[str, Any]:
        return self.run.report(role, index) or {}
