"""Faults of a job in virtual time: single ones, and random storms of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from cpr_operator.api.status import TERMINAL_PHASES
from cpr_operator.cluster.certificates import PodTLS
from cpr_operator.cluster.views import PodView
from simulation.control_plane.cluster import SimulatedCluster, When
from simulation.control_plane.run import TICK_S, RunResult, Simulation
from simulation.control_plane.workload import Action, Scenario, spec

#: May raise before or after the n-th call that changes the cluster.
CallFault = Callable[[str, int, When], None]


def kill(role: str, index: int) -> Action:
    return lambda cluster: cluster.kill(role, index)


def drain(role: str, index: int, *, force: bool = False) -> Action:
    return lambda cluster: cluster.drain(role, index, force=force)


def stop(role: str, index: int) -> Action:
    return lambda cluster: cluster.stop(role, index)


def lose_node(role: str, index: int) -> Action:
    return lambda cluster: cluster.lose_node(role, index)


def store(*, down: bool) -> Action:
    return lambda cluster: setattr(cluster.plane().store, "down", down)


def skew_clock(seconds: float) -> Action:
    """From now on the API server's clock is so far ahead of the operator's."""
    return lambda cluster: setattr(cluster, "skew_s", seconds)


def cut_result(retained: slice) -> Action:
    """Kubelets keep only this part of the termination message of a leader that has trained everything."""
    return lambda cluster: setattr(cluster.plane(), "result_slice", retained)


def kill_spares(cluster: SimulatedCluster) -> None:
    for pod in cluster.spares():
        cluster.kill_pod(pod.name)


def damage_save(index: int) -> Action:
    """The newest save of a shard does not verify; nor does the anchor that it is part of."""

    def act(cluster: SimulatedCluster) -> None:
        plane = cluster.plane()
        saves = [(g, s) for (g, i), line in plane.store.shards.items() if i == index for s in line]
        if saves:
            generation, save = max(saves, key=lambda each: (each[0], each[1].samples))
            plane.store.damaged.add(save.key)
            plane.store.damaged |= {
                a.key for a in plane.store.anchors if (a.generation, a.samples) == (generation, save.samples)
            }

    return act


def damage_anchor(cluster: SimulatedCluster) -> None:
    """The dense state of the newest anchor does not verify."""
    plane = cluster.plane()
    plane.store.damaged |= {anchor.key for anchor in plane.store.anchors[-1:]}


def quota(value: int | None) -> Action:
    return lambda cluster: setattr(cluster, "quota", value)


def kill_all(c: SimulatedCluster) -> None:
    for name in [*c.plane().shards, *c.plane().trainers]:
        pod = c.pods[name].view()
        c.kill(pod.role, pod.index)


KINDS = (
    "kill shard",
    "kill shard",  # twice as likely as others
    "kill trainer",
    "kill two shards",
    "drain shard",
    "drain trainer",
    "cut off shard",
    "cut off shard",
    "cut off trainer",
    "stop shard",
    "stop trainer",
    "damage save",
    "damage anchor",
    "store down",
    "operator away",
    "operator killed",
    "suspend",
    "reshard",
    "scale trainers",
    "lower budget",
    "skew clock",
)
#: Seconds that the API server's clock may be ahead of the operator's.
SKEWS_S = (-30.0, 7.0, 30.0)


@dataclass(frozen=True)
class Fault:
    """`after_s` the fault before, something of `kind` happens to member `index`; some kinds last for `lasts_s`."""

    kind: str
    index: int
    after_s: float
    lasts_s: float


def faults(script: str) -> tuple[Fault, ...]:
    """Read `SECONDS KIND [INDEX] [for SECONDS]; ...`: "1.75 kill shard 1; 0.25 store down for 8"."""
    found = [re.fullmatch(r"([\d.]+) ([a-z ]+?)(?: (\d))?(?: for ([\d.]+))?", each) for each in script.split("; ")]
    assert all(found), script
    rows = [each.groups() for each in found if each]
    return tuple(Fault(kind, int(index or 0), float(after), float(lasts or 0)) for after, kind, index, lasts in rows)


@dataclass(frozen=True)
class Storm:
    """A job, and the faults that are injected."""

    spec: dict[str, Any]
    faults: tuple[Fault, ...]
    roster_delay_s: float = 0.0  # until a process reads its new roster
    report_age_s: float = 0.0  # the age of reports
    skew_s: float = 0.0  # the API server's clock is so far ahead of the operator's


def storms(max_faults: int = 6) -> st.SearchStrategy[Storm]:
    """Jobs of one or two trainers and two or three shards, any mode, budget and interval; up to that many faults."""
    seconds = st.sampled_from((0.0, 0.25, 0.5, 1.0, 2.0, 4.0))
    interval = st.sampled_from(({"mode": "Fixed", "seconds": 1}, {"mode": "Fixed", "seconds": 3}, {"mode": "Auto"}))
    jobs = st.builds(
        lambda mode, loss, replay, portion, shards, spares, trainers, sync, interval, mtbf: spec(
            recovery__mode=mode if portion else "Auto",
            recovery__onShardLoss=loss if portion and mode != "Full" else "Pause",
            recovery__replay={"mode": replay},
            accuracyBudget__portionOfLostSamples=portion,
            shards={"replicas": shards, "spares": spares},
            trainers={"replicas": trainers if sync == "AllReduce" else 1 + trainers, "denseSync": sync},
            snapshots__interval=interval,
            failurePolicy__expectedJobMtbfSeconds=mtbf,
            failurePolicy__restartLimit={"count": 50},
            failurePolicy__startupDeadlineSeconds=600,
        ),
        mode=st.sampled_from(("Auto", "Partial", "Full")),
        loss=st.sampled_from(("Pause", "Degrade")),
        replay=st.sampled_from(("Off", "Auto")),
        portion=st.sampled_from((0.0, 0.04, 0.1, 0.2, 0.3, 0.9)),
        shards=st.integers(2, 3),
        spares=st.integers(0, 2),
        trainers=st.integers(1, 2),
        sync=st.sampled_from(("AllReduce", "ShadowMA")),
        interval=interval,
        mtbf=st.sampled_from((1, 10, 1000)),
    )
    faults = st.builds(Fault, st.sampled_from(KINDS), st.integers(0, 2), seconds, seconds)
    return st.builds(
        Storm,
        jobs,
        st.lists(faults, min_size=1, max_size=max_faults).map(tuple),
        roster_delay_s=st.sampled_from((0.0, 0.5, 1.5)),
        report_age_s=st.sampled_from((0.0, 0.0, 0.5, 1.5)),
        skew_s=st.sampled_from((0.0, *SKEWS_S)),
    )


@dataclass
class _Later:
    """Actions, each with the time at which it is due."""

    due: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def at(self, time: float, action: Callable[[], None]) -> None:
        self.due.append((time, action))

    def run(self, now: float) -> None:
        ready = [action for time, action in self.due if time <= now]
        self.due = [(time, action) for time, action in self.due if time > now]
        for action in ready:
            action()


class StormSimulation(Simulation):
    """Drives one job through its storm."""

    def __init__(self, storm: Storm) -> None:
        members = (*(f"shard/{i}" for i in range(3)), *(f"trainer/{i}" for i in range(3)))
        super().__init__(Scenario("storm", spec=storm.spec, replaced=members, deadline_s=900.0))
        self.storm = storm
        self.cluster.roster_delay_s = storm.roster_delay_s
        self.cluster.skew_s = storm.skew_s
        self.cluster.fetch_report = self._old_report
        self._reports: list[dict[str, bytes | None]] = []
        self._later = _Later()
        self._unavailable_until = 0.0

    async def run(self) -> RunResult:
        at = self.cluster.now + 2.0  # all pods run by then, and nothing is trained yet
        for fault in self.storm.faults:
            at += fault.after_s
            self._later.at(at, lambda fault=fault: self._inject(fault))
        return await super().run()

    async def _pass(self) -> None:
        if self.cluster.now >= self._unavailable_until:
            await super()._pass()

    async def _old_report(
        self, pod: PodView, deadline_s: float, max_bytes: int, recorded: str = "", tls: PodTLS | None = None
    ) -> bytes | None:
        """The answer of the pod some ticks ago."""
        held = self.cluster.pods.get(pod.name)
        if held is None or held.phase != "Running":
            return None
        ticks = int(self.storm.report_age_s / TICK_S)
        return self._answers().get(pod.name) if not ticks else self._reports[-ticks:][0].get(pod.name)

    def _answers(self) -> dict[str, bytes | None]:
        return {name: plane.report(name) for plane in self.cluster.planes.values() for name in self.cluster.pods}

    def _check(self) -> None:
        super()._check()
        if self.storm.report_age_s:
            self._reports.append(self._answers())
        self._later.run(self.cluster.now)

    def _check_fencing(self) -> None:
        """A shard that is cut off may still serve: only the shards that the trainers use are checked."""

    def _inject(self, fault: Fault) -> None:
        role = "trainer" if fault.kind.endswith("trainer") else "shard"
        members = [pod for pod in self.cluster.pods.values() if pod.view().role == role]
        if self.status().phase in TERMINAL_PHASES or not members:
            return
        index = fault.index % (1 + max(pod.view().index for pod in members))
        if any(pod.view().index == index for pod in members):
            self._hit(fault, role, index)

    def _hit(self, fault: Fault, role: str, index: int) -> None:
        cluster, later = self.cluster, lambda action: self._later.at(self.cluster.now + fault.lasts_s, action)
        match fault.kind.split()[0]:
            case "kill":
                cluster.kill(role, index)
                if "two" in fault.kind:
                    later(lambda: self._inject(Fault("kill shard", index + 1, 0, 0)))
            case "drain":
                if cluster.member(role, index).deleting_until is None:
                    cluster.drain(role, index)
            case "cut":
                later(self._cut_off(role, index))
            case "stop":
                later(self._stop(role, index))
            case "damage":
                (damage_save(index) if "save" in fault.kind else damage_anchor)(cluster)
            case "skew":
                cluster.skew_s = SKEWS_S[fault.index]
            case "store" | "operator":
                self._make_unavailable(fault)
            case _:
                self._change(fault)

    def _change(self, fault: Fault) -> None:
        """A user edits the job."""
        match fault.kind:
            case "lower budget":
                self._lower_budget()
            case "scale trainers":
                self._scale(max(1 + fault.index, 2 if self._shadow else 1))
            case _:
                self.cluster.set_spec("job", suspend=True)
                self._later.at(self.cluster.now + fault.lasts_s, lambda: self._resume(fault))

    @property
    def _shadow(self) -> bool:
        """Return whether ranks take steps of their own: at least two, over a fixed number of shards."""
        return bool(self.storm.spec["trainers"].get("denseSync", "AllReduce") != "AllReduce")

    def _scale(self, trainers: int) -> None:
        before = self.cluster.jobs["default", "job"].spec["trainers"]
        self.cluster.set_spec("job", trainers={**before, "replicas": trainers})

    def _resume(self, fault: Fault) -> None:
        """With other shards only once the job is suspended: before, the API server does not admit that."""
        phase = self.status().phase
        if fault.kind == "reshard" and phase == "Suspended" and not self._shadow:
            least = 2 if self.storm.spec.get("recovery", {}).get("onShardLoss") == "Degrade" else 1
            self.cluster.set_spec("job", shards={"replicas": max(1 + fault.index, least)})
        if fault.kind == "suspend" or phase in {"Suspended", *TERMINAL_PHASES}:
            self.cluster.set_spec("job", suspend=False)
        else:
            self._later.at(self.cluster.now + TICK_S, lambda: self._resume(fault))

    def _lower_budget(self) -> None:
        """To the least that the API server admits: what is spent and reserved, as it was last written."""
        budget, recovery = self.status().budget, self.cluster.jobs["default", "job"].spec["recovery"]
        if budget is not None and recovery["mode"] != "Partial" and recovery.get("onShardLoss") != "Degrade":
            least = {"portionOfLostSamples": min(budget.spent + budget.reserved, budget.limit)}
            self.cluster.set_spec("job", accuracyBudget=least)

    def _make_unavailable(self, fault: Fault) -> None:
        """The store or the operator does not answer for a while, or the operator restarts."""
        if fault.kind == "store down":
            store = self.cluster.plane().store
            store.down = True
            self._later.at(self.cluster.now + fault.lasts_s, lambda: setattr(store, "down", False))
        elif fault.kind == "operator away":
            self._unavailable_until = self.cluster.now + fault.lasts_s
        else:
            self.skew_s = (0.0, *SKEWS_S)[fault.index]
            self.take_over()

    def _cut_off(self, role: str, index: int) -> Callable[[], None]:
        """Delete it by force on an unreachable node: the object is gone, and the process works on for a while."""
        pod, plane = self.cluster.member(role, index), self.cluster.plane()
        del self.cluster.pods[pod.name]
        return lambda: plane.kill(pod.name)

    def _stop(self, role: str, index: int) -> Callable[[], None]:
        """SIGSTOP; the returned action continues the process, if it still exists."""
        pod, plane = self.cluster.member(role, index), self.cluster.plane()
        process = plane.process(pod.name)
        self.cluster.stop(role, index)
        return lambda: setattr(process, "stopped", False) if process is not None else None
