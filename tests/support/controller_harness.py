"""A cluster with one job and a controller; a test runs its passes."""

from __future__ import annotations

import random
from typing import Any

from cpr_operator.api.status import Status
from cpr_operator.controller.controller import Controller, OnWritten
from cpr_operator.reconcile import AdmissionGate, Timing
from simulation.control_plane.cluster import SimulatedCluster
from simulation.control_plane.workload import spec


class ControllerHarness:
    """A cluster with one job, and a controller."""

    def __init__(
        self,
        job: dict[str, Any] | None = None,
        admission_gate: AdmissionGate | None = None,
        total: int = 2000,
        cluster: SimulatedCluster | None = None,
        on_written: OnWritten = lambda *_: None,
    ) -> None:
        self.cluster = cluster or SimulatedCluster(total)
        self.cluster.add_job("job", job or spec())
        timing = Timing(running_s=15, changing_s=1, progress_s=15)
        self.gate, self.deleted = admission_gate, list[str]()

        async def gate() -> AdmissionGate | None:
            return self.gate

        self.controller = Controller(
            self.cluster,
            lambda: self.cluster.now,
            admission_gate=gate,
            on_deleted=lambda _, name: self.deleted.append(name),
            on_written=on_written,
            timing=timing,
            rng=random.Random(1),
        )

    async def go(self, passes: int = 1, dt: float = 0.25) -> float | None:
        wake = None
        for _ in range(passes):
            self.cluster.tick(dt)
            wake = await self.controller.run_pass("default", "job")
        return wake

    @property
    def status(self) -> Status:
        return Status.model_validate(self.cluster.jobs["default", "job"].status)

    def condition(self, kind: str) -> tuple[str, str, str]:
        found = next(c for c in self.status.conditions if c.type == kind)
        return found.status, found.reason, found.message
