"""Runs of a scenario to its end, in virtual time, with invariants at every step."""

from __future__ import annotations

import contextlib
import copy
import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpr_contract import env
from cpr_operator.api.goodput_status import Goodput
from cpr_operator.api.status import Status
from cpr_operator.cluster.protocol import ClusterError
from cpr_operator.controller.controller import Controller
from cpr_operator.controller.job_reader import job_of, parse_report
from cpr_operator.controller.quota import QuotaRelease
from cpr_operator.desired.workload import QUEUE_LABEL
from cpr_operator.goodput import parts_ms
from cpr_operator.reconcile import ReconcileInput, Timing
from cpr_operator.reconcile.kueue import holds_quota, spares_in, uses_quota
from cpr_operator.recovery.account import account_of
from simulation.control_plane.cluster import SimulatedCluster
from simulation.control_plane.workload import TOTAL, Scenario, spec

TICK_S = 0.25


KEYS = itertools.count(1)


TIMING = Timing(running_s=5.0, floor_s=0.5, changing_s=0.5, progress_s=5.0)


class Crash(Exception):  # noqa: N818 -- not an error
    """The operator was killed here."""


@dataclass
class RunResult:
    """A finished run."""

    cluster: SimulatedCluster
    status: Status
    phases: list[str]


class Simulation:
    """Runs one scenario with one controller at a time; a crashed one is replaced by a new one."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.cluster = SimulatedCluster(TOTAL)
        self.cluster.on_pod = self._pod_changed
        labels = {QUEUE_LABEL: scenario.queue} if scenario.queue else {}
        self.cluster.add_job("job", scenario.spec or spec(), labels=labels)
        self.skew_s = 0.0  # the operator's clock is so far ahead of the kubelets'
        self.take_over()
        self.due = self.cluster.now
        self._document: Mapping[str, Any] | None = None
        self._status = Status()
        self._checked: Status | None = None
        self._steps = list(scenario.steps)
        self._end = self.cluster.now + scenario.deadline_s
        self.uids: dict[tuple[str, str], str] = {}
        self._accounts: dict[str, list[Goodput]] = {}  # by uid of the job: the first and the last

    @property
    def unfinished(self) -> bool:
        """Return whether a step of the scenario has not happened yet."""
        return bool(self._steps)

    @property
    def begun(self) -> bool:
        """Return whether a step of the scenario has happened."""
        return len(self._steps) < len(self.scenario.steps)

    async def run(self) -> RunResult:
        """Run to the end."""
        while not self.over:
            await self.step()
        return self.result()

    def result(self) -> RunResult:
        """The result of the run so far."""
        phases = [str(status["phase"]) for status in self.cluster.statuses]
        return RunResult(self.cluster, self.status(), phases)

    async def step(self) -> None:
        """One tick, with the pass that is due and what the scenario has happen."""
        if self.cluster.now > self._end:
            raise AssertionError(f"{self.scenario.name} never ends: {self.status().model_dump_json(indent=1)}")
        if self._steps and self._steps[0][0](self.cluster):
            self._steps.pop(0)[1](self.cluster)
            self.due = self.cluster.now
        self.cluster.tick(TICK_S)
        if self.cluster.now >= self.due:
            await self._pass()
        await self._release()
        self._check()

    def copy(self) -> Simulation:
        """Return a copy of this moment, which can be run on independently. Immutable parts are shared."""
        cluster, caches = self.cluster, self.controller._caches.values()
        shared: list[object] = [self.scenario, self._status, *cluster.statuses, *cluster.jobs.values()]
        shared += [*cluster.objects.values(), *cluster.secrets.values(), *cluster.events.values()]
        shared += [*cluster._former.values(), *cluster._listed.values()]
        for pod in cluster.pods.values():
            shared += [pod.manifest["spec"], pod.shown, pod.container]
        for plane in cluster.planes.values():
            shared += [plane.spec, *plane.store.anchors]
            shared += [shard.roster for shard in plane.shards.values()]
            shared += [trainer.roster for trainer in plane.trainers.values()]
        for cache in caches:
            shared += [cache.job, *cache.ended_pods.values()]
        return copy.deepcopy(self, {id(each): each for each in shared})

    async def passes(self, count: int) -> None:
        """Run this number of passes, a tick apart."""
        for _ in range(count):
            self.cluster.tick(TICK_S)
            await self.controller.run_pass("default", "job")

    async def reconcile_input(self) -> ReconcileInput:
        """The input of the next pass, with a report of every pod that answers."""
        job = job_of(await self.cluster.get_job("default", "job"))
        pods = tuple(pod.view() for pod in self.cluster.pods.values())
        answers = {pod.uid: parse_report(pod, self.cluster.plane().report(pod.name) or b"") for pod in pods}
        reports = {uid: report for uid, report in answers.items() if report is not None}
        return ReconcileInput(job, pods, reports, now=self.cluster.now)

    def status(self) -> Status:
        """The status as it is, or was last; parsed once per version."""
        job = self.cluster.jobs.get(("default", "job"))
        document = job.status if job else self.cluster.statuses[-1]
        if document is not self._document:
            self._document, self._status = document, Status.model_validate(document)
        return self._status

    def job_uid(self) -> str:
        """The uid of the job that is there, empty once it is gone."""
        job = self.cluster.jobs.get(("default", "job"))
        return job.uid if job else ""

    async def _pass(self) -> None:
        try:
            wake = await self.controller.run_pass("default", "job")
            self.due = self.cluster.now + (wake if wake is not None else 5.0)
        except Crash:
            self.take_over()
            self.due = self.cluster.now
        except ClusterError:
            self.due = self.cluster.now + 1.0

    async def _release(self) -> None:
        """Release the quota of Workloads, as the queue of the operator does."""
        for kind, namespace, name in list(self.cluster.objects):
            if kind == "Workload":
                with contextlib.suppress(Crash, ClusterError):
                    await self._release_of_quota.run_pass(namespace, name)

    @property
    def over(self) -> bool:
        """Return whether all steps are done, and the job or its pods have nothing left to do."""
        if self.unfinished:
            return False
        live = any(p.phase in {"Pending", "Running"} and not p.node_lost for p in self.cluster.pods.values())
        job = self.cluster.jobs.get(("default", "job"))
        return not live and (job is None or (not job.deleting and self.status().phase in {"Succeeded", "Failed"}))

    def take_over(self) -> None:
        """Start another process of the operator, with the state of the API server alone."""
        self.controller = self._controller()
        self._release_of_quota = QuotaRelease(self.cluster, self._clock)

    def _controller(self) -> Controller:
        return Controller(
            self.cluster,
            self._clock,
            timing=TIMING,
            kueue=True if self.scenario.queue else None,
            new_key=lambda: f"key-{next(KEYS)}",
            rng=random.Random(1),
        )

    def _clock(self) -> float:
        return self.cluster.now + self.skew_s

    def _pod_changed(self, job: str, pod: Any) -> None:
        self.controller.on_pod_event("default", job, pod)
        self.due = min(self.due, self.cluster.now + TICK_S)

    def _check(self) -> None:
        """Check the invariants that hold at any moment. Those of a status are checked once."""
        status = self.status()
        if status is not self._checked:
            self._checked = status
            self._check_status(status)
        self._check_fencing()
        self._check_quota()

    def _check_status(self, status: Status) -> None:
        assert not status.ledger.total_samples or account_of(status).ledger.left >= 0
        for role, members in (("shard", status.shards), ("trainer", status.trainers)):
            for member in members:
                name = f"{role}/{member.index}"
                if self.job_uid() and member.uid and name not in self.scenario.replaced:
                    assert self.uids.setdefault((self.job_uid(), name), member.uid) == member.uid, (
                        f"{name} was replaced"
                    )
        self._check_time(status)

    def _check_time(self, status: Status) -> None:
        """The parts of the job's time add up to the wall time in every status, and none is negative or shrinks."""
        now = status.goodput
        if now is None or not self.job_uid():  # the job is deleted
            return
        first, before = self._accounts.setdefault(self.job_uid(), [now, now])
        parts = parts_ms(now)
        assert sum(parts.values()) == round(1000 * now.wall_seconds), f"{parts} are not {now.wall_seconds} s"
        passed_s = now.updated - first.updated
        assert round(1000 * (now.wall_seconds - first.wall_seconds)) == round(1000 * passed_s), "time was left out"
        for name, value in parts_ms(before).items():
            assert parts[name] >= value >= 0, f"{name} fell from {value} to {parts[name]} ms"
        self._accounts[self.job_uid()][1] = now

    def _check_quota(self) -> None:
        """No pod of a job in a queue is there without quota."""
        pods = [pod.view() for pod in self.cluster.pods.values()]
        if self.scenario.queue and uses_quota(pods, self.cluster.server_now):
            workloads = [each for each in self.cluster.objects.values() if each["kind"] == "Workload"]
            assert any(map(holds_quota, workloads)), "the quota was given back before the pods were gone"
            spares = [pod for pod in pods if pod.role == env.ROLE_SPARE and not pod.ended]
            assert len(spares) <= max(map(spares_in, workloads)), "there are spares without quota"

    def _check_fencing(self) -> None:
        """No incarnation of a shard serves at the same time as its successor."""
        for plane in self.cluster.planes.values():
            for index in range(plane.spec.shards):
                serving = [
                    s for s in plane.shards.values() if s.roster.index == index and s.state == "Ready" and not s.stopped
                ]
                assert len(serving) <= 1, f"two incarnations of shard {index} serve"


async def input_in_mid_training(trainers: int) -> ReconcileInput:
    """A job that trains, and a report of each member."""
    driver = Simulation(Scenario("half", (), spec(trainers__replicas=trainers)))
    await driver.passes(10)
    found = await driver.reconcile_input()
    assert found.job.status.phase == "Running"
    return found
