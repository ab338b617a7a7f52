"""The timeline of one recovery, seen from outside: when each stage was first observed after the deletion."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jobs import Run

STAGES = ("seen", "created", "running", "restored", "training again")


@dataclass
class Timeline:
    """Stages of one shard's recovery, in seconds since `watch` was called."""

    run: Run
    shard: int
    incarnation: int
    samples: int
    started: float
    at: dict[str, float] = field(default_factory=dict)

    @classmethod
    def watch(cls, run: Run, shard: int) -> "Timeline":
        """Note where the job stands; to be called right before the shard is taken away."""
        incarnation = run.pod("shard", shard).incarnation
        leader = run.report("trainer", run.leader())
        return cls(run, shard, incarnation, leader["samples_started"] if leader else 0, time.monotonic())

    def collect(self, within_s: float) -> None:
        """Look again and again until training goes on."""
        probes: dict[str, Callable[[], Any]] = {
            "seen": lambda: self.run.status().get("recovery"),
            "created": self._successor,
            "running": lambda: (pod := self._successor()) and pod.phase == "Running",
            "restored": lambda: (
                self._successor() and (self.run.report("shard", self.shard) or {}).get("state") == "Ready"
            ),
            "training again": self._trains,
        }
        while "training again" not in self.at:
            stage = next(stage for stage in STAGES if stage not in self.at)
            if probes[stage]():
                self.at[stage] = time.monotonic() - self.started
            elif time.monotonic() - self.started > within_s:
                raise TimeoutError(f"not within {within_s:g} s: {stage}; seen so far {self.at}")

    def table(self) -> str:
        """Return the stages as lines of text."""
        rows = [("deleted", 0.0), *((stage, self.at[stage]) for stage in STAGES if stage in self.at)]
        return "\n".join(["recovery of a shard, seconds", *(f"  {stage:<15} {at:6.2f}" for stage, at in rows)])

    def _successor(self) -> Any:
        pod = self.run.find("shard", self.shard)
        return pod if pod and pod.incarnation > self.incarnation else None

    def _trains(self) -> bool:
        leader = self.run.report("trainer", self.run.leader())
        return bool(leader and leader["state"] == "Training" and leader["samples"] > self.samples)
