"""Whole lives of jobs in virtual time: what happens to them, and how they are driven to their end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cpr_operator.api.status import Status
from cpr_operator.cluster.protocol import ClusterError
from cpr_operator.controller import Controller
from cpr_operator.reconcile import Timing
from support.fake_cluster import FakeCluster, When

TOTAL = 2000
BATCH = 100
TICK_S = 0.25
TIMING = Timing(running_s=5.0, changing_s=0.5, progress_s=5.0)

#: When something happens: a look at the cluster that says so.
Trigger = Callable[[FakeCluster], bool]
Action = Callable[[FakeCluster], None]


#: May raise before or after the n-th call that changes the cluster.
Fault = Callable[[str, int, When], None]


def no_fault(_call: str, _number: int, _when: When) -> None:
    """Everything goes well."""


class Crash(Exception):  # noqa: N818 -- not an error of anybody's
    """The operator was killed here."""


def spec(**changes: Any) -> dict[str, Any]:
    """A small job: 2000 samples, a save every 1 s or 400 samples."""
    document: dict[str, Any] = {
        "image": "trainer:1",
        "accuracyBudget": {"portionOfLostSamples": 0.3},
        "model": {
            "embeddingDim": 4,
            "bottomMlp": [8, 4],
            "topMlp": [8, 1],
            "tables": [{"name": "t0", "rows": 100}],
        },
        "data": {"format": "Synthetic", "samples": TOTAL, "batchSize": BATCH},
        "trainers": {"replicas": 2},
        "shards": {"replicas": 3},
        "snapshots": {
            "store": {"endpoint": "file:///store", "bucket": "saves"},
            "interval": {"mode": "Fixed", "seconds": 1},
        },
        "failurePolicy": {"silenceSeconds": 2, "startupDeadlineSeconds": 60, "restartLimit": {"count": 6}},
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        part = document
        for parent in parents:
            part = part.setdefault(parent, {})
        part[last] = value
    return document


@dataclass(frozen=True)
class Scenario:
    """`story` happens in order, each part once, when its trigger holds and the part before has happened."""

    name: str
    story: tuple[tuple[Trigger, Action], ...] = ()
    spec: Mapping[str, Any] | None = None
    phase: str = "Succeeded"
    replaced: tuple[str, ...] = ()  # members that may have another uid at the end
    deadline_s: float = 300.0


@dataclass
class Life:
    """A finished run."""

    cluster: FakeCluster
    status: Status
    phases: list[str]


class Driver:
    """Runs one scenario with one controller at a time; a crashed one is replaced by a new one."""

    def __init__(self, scenario: Scenario, fault: Fault = no_fault) -> None:
        self.scenario = scenario
        self.cluster = FakeCluster(TOTAL)
        self.cluster.fault = fault
        self.cluster.on_pod = self._pod_changed
        self.cluster.add_job("job", scenario.spec or spec())
        self.controller = self._controller()
        self.due = self.cluster.now
        self._document: Mapping[str, Any] | None = None
        self._status = Status()
        self.uids: dict[tuple[str, str], str] = {}

    async def run(self) -> Life:
        story = list(self.scenario.story)
        end = self.cluster.now + self.scenario.deadline_s
        while not self._over() or story:
            if self.cluster.now > end:
                raise AssertionError(f"{self.scenario.name} never ends: {self.status().model_dump_json(indent=1)}")
            if story and story[0][0](self.cluster):
                story.pop(0)[1](self.cluster)
                self.due = self.cluster.now
            self.cluster.tick(TICK_S)
            if self.cluster.now >= self.due:
                await self._pass()
            self._check()
        phases = [str(status["phase"]) for status in self.cluster.statuses]
        return Life(self.cluster, self.status(), phases)

    def status(self) -> Status:
        """The status as it is, or was last; parsed once per version."""
        job = self.cluster.jobs.get(("default", "job"))
        document = job.status if job else self.cluster.statuses[-1]
        if document is not self._document:
            self._document, self._status = document, Status.model_validate(document)
        return self._status

    def job_uid(self) -> str:
        return self.cluster.jobs["default", "job"].uid

    async def _pass(self) -> None:
        try:
            wake = await self.controller.run_pass("default", "job")
            self.due = self.cluster.now + (wake if wake is not None else 5.0)
        except Crash:
            self.controller = self._controller()
            self.due = self.cluster.now
        except ClusterError:
            self.due = self.cluster.now + 1.0

    def _over(self) -> bool:
        live = any(p.phase in {"Pending", "Running"} and not p.node_lost for p in self.cluster.pods.values())
        return self.status().phase in {"Succeeded", "Failed"} and not live

    def _controller(self) -> Controller:
        return Controller(self.cluster, lambda: self.cluster.now, timing=TIMING, new_key=lambda: "key")

    def _pod_changed(self, job: str, pod: Any) -> None:
        self.controller.saw("default", job, pod)
        self.due = min(self.due, self.cluster.now + TICK_S)

    def _check(self) -> None:
        """What holds at any moment."""
        status = self.status()
        ledger = status.ledger
        spent = sum(end - first for ranges in ledger.ranges for first, end in ranges)
        assert not ledger.total_samples or spent <= ledger.limit_sample_shards
        for role, members in (("shard", status.shards), ("trainer", status.trainers)):
            for member in members:
                name = f"{role}/{member.index}"
                if member.uid and name not in self.scenario.replaced:
                    assert self.uids.setdefault((self.job_uid(), name), member.uid) == member.uid, (
                        f"{name} was replaced"
                    )
        self._check_fencing()

    def _check_fencing(self) -> None:
        """Nobody serves beside its successor."""
        for plane in self.cluster.planes.values():
            for index in range(plane.spec.shards):
                serving = [
                    s for s in plane.shards.values() if s.roster.index == index and s.state == "Ready" and not s.stopped
                ]
                assert len(serving) <= 1, f"two incarnations of shard {index} serve"


def trained(samples: int) -> Trigger:
    """All trainers' common position has passed this many samples."""
    return lambda cluster: any(
        (t.samples or 0) >= samples for plane in cluster.planes.values() for t in plane.trainers.values()
    )


def phase(name: str) -> Trigger:
    return lambda cluster: cluster.jobs["default", "job"].status.get("phase") == name


def after(seconds: float) -> Trigger:
    """So long after it was first asked."""
    since: list[float] = []

    def over(cluster: FakeCluster) -> bool:
        since.append(cluster.now)
        return cluster.now >= since[0] + seconds

    return over


def _both(*actions: Action) -> Action:
    def act(cluster: FakeCluster) -> None:
        for action in actions:
            action(cluster)

    return act


def _kill(role: str, index: int) -> Action:
    return lambda cluster: cluster.kill(role, index)


def _suspend(*, value: bool) -> Action:
    return lambda cluster: cluster.set_spec("job", suspend=value)


def damage_save(index: int) -> Action:
    """The newest save of a shard does not verify; nor does the anchor that it is part of."""

    def act(cluster: FakeCluster) -> None:
        plane = cluster.plane()
        saves = [(g, s) for (g, i), line in plane.store.shards.items() if i == index for s in line]
        if saves:
            generation, save = max(saves, key=lambda each: (each[0], each[1].samples))
            plane.store.damaged.add(save.key)
            plane.store.damaged |= {
                a.key for a in plane.store.anchors if (a.generation, a.samples) == (generation, save.samples)
            }

    return act


def damage_anchor(cluster: FakeCluster) -> None:
    """The dense state of the newest anchor does not verify."""
    plane = cluster.plane()
    plane.store.damaged |= {anchor.key for anchor in plane.store.anchors[-1:]}


def _quota(value: int | None) -> Action:
    return lambda cluster: setattr(cluster, "quota", value)


def _restoring(index: int) -> Trigger:
    """A process that restores this shard runs."""
    return lambda c: any(
        s.roster.index == index and s.roster.incarnation > 1 and s.ready_at is not None and s.generation == 0
        for s in c.plane().shards.values()
    )


def _trained(c: FakeCluster) -> bool:
    """The leader has ended well."""
    return any(pod.view().role == "trainer" and pod.phase == "Succeeded" for pod in c.pods.values())


def _runs(index: int) -> Trigger:
    """The shard's process runs, and the operator has seen its pod."""

    def runs(c: FakeCluster) -> bool:
        seen = any(s["uid"] and s["index"] == index for s in c.jobs["default", "job"].status.get("shards", ()))
        return seen and c.member("shard", index).phase == "Running"

    return runs


def _reapply(cluster: FakeCluster) -> None:
    job = cluster.jobs.pop(("default", "job"))
    cluster.collect_garbage(job.uid)
    cluster.add_job("job", job.spec, uid="abcdef00-1111")


def _everybody(c: FakeCluster) -> None:
    for name in [*c.plane().shards, *c.plane().trainers]:
        pod = c.pods[name].view()
        c.kill(pod.role, pod.index)


EVERYBODY = ("shard/0", "shard/1", "shard/2", "trainer/0", "trainer/1")
HALF = trained(900)
ONE_TRAINER = spec(trainers__replicas=1)
TIGHT = spec(accuracyBudget__portionOfLostSamples=0.01)

SCENARIOS = (
    Scenario("no failure"),
    Scenario("a shard is killed", ((HALF, _kill("shard", 1)),), replaced=("shard/1",)),
    Scenario("a shard is killed before anything is trained", ((_runs(1), _kill("shard", 1)),), replaced=("shard/1",)),
    Scenario("a trainer is killed", ((HALF, _kill("trainer", 1)),), replaced=("trainer/1",)),
    Scenario("the leader is killed", ((HALF, _kill("trainer", 0)),), replaced=("trainer/0",)),
    Scenario("the only trainer is killed", ((HALF, _kill("trainer", 0)),), ONE_TRAINER, replaced=("trainer/0",)),
    Scenario(
        "two shards are killed at once",
        ((HALF, _both(_kill("shard", 0), _kill("shard", 2))),),
        replaced=("shard/0", "shard/2"),
    ),
    Scenario(
        "a shard is killed again while it restores",
        ((HALF, _kill("shard", 1)), (_restoring(1), _kill("shard", 1))),
        replaced=("shard/1",),
    ),
    Scenario(
        "a shard and the leader are killed at once",
        ((HALF, _both(_kill("shard", 1), _kill("trainer", 0))),),
        replaced=("shard/1", "trainer/0"),
    ),
    Scenario(
        "a shard and the only trainer are killed at once",
        ((HALF, _both(_kill("shard", 1), _kill("trainer", 0))),),
        ONE_TRAINER,
        replaced=("shard/1", "trainer/0"),
    ),
    Scenario("a shard is drained", ((HALF, lambda c: c.drain("shard", 1)),), replaced=("shard/1",)),
    Scenario("a trainer is drained", ((HALF, lambda c: c.drain("trainer", 1)),), replaced=("trainer/1",)),
    Scenario(
        "the only trainer is drained", ((HALF, lambda c: c.drain("trainer", 0)),), ONE_TRAINER, replaced=("trainer/0",)
    ),
    Scenario("a shard vanishes", ((HALF, lambda c: c.drain("shard", 1, force=True)),), replaced=("shard/1",)),
    Scenario("a shard hangs", ((HALF, lambda c: c.stop("shard", 1)),), replaced=("shard/1",)),
    Scenario(
        "a shard hangs on the only node",
        (
            (after(0), lambda c: setattr(c, "nodes", ("node-0",))),
            (HALF, lambda c: c.stop("shard", 1)),
        ),
        replaced=("shard/1",),
    ),
    Scenario("the leader hangs", ((HALF, lambda c: c.stop("trainer", 0)),), replaced=("trainer/0",)),
    Scenario("a shard's node is lost", ((HALF, lambda c: c.lose_node("shard", 1)),), replaced=("shard/1",)),
    Scenario("a loss does not fit", ((HALF, _kill("shard", 1)),), TIGHT, replaced=("shard/1",)),
    Scenario(
        "the second of two losses does not fit",
        ((HALF, _kill("shard", 1)), (trained(1100), _kill("shard", 1))),
        spec(accuracyBudget__portionOfLostSamples=0.06),
        replaced=("shard/1",),
    ),
    Scenario("full recovery", ((HALF, _kill("shard", 1)),), spec(recovery__mode="Full"), replaced=("shard/1",)),
    Scenario(
        "no budget",
        ((HALF, _kill("shard", 1)),),
        spec(accuracyBudget__portionOfLostSamples=0),
        replaced=("shard/1",),
    ),
    Scenario(
        "the restart limit is reached",
        ((trained(500), _kill("shard", 1)), (trained(1300), _kill("shard", 1))),
        spec(failurePolicy__restartLimit={"count": 1, "windowSeconds": 3600}),
        phase="Failed",
        replaced=("shard/1",),
    ),
    Scenario(
        "data that is none",
        (
            (
                HALF,
                lambda c: c.exit_with("trainer", 0, 21, '{"reason":"BadLine","message":"line 3","remedy":"mend it"}'),
            ),
        ),
        phase="Failed",
    ),
    Scenario(
        "suspended and resumed",
        ((HALF, _suspend(value=True)), (phase("Suspended"), _suspend(value=False))),
        TIGHT,
        replaced=EVERYBODY,
    ),
    Scenario(
        "resumed while it is being suspended",
        ((HALF, _suspend(value=True)), (phase("Suspending"), _suspend(value=False))),
        TIGHT,
        replaced=EVERYBODY,
    ),
    Scenario(
        "suspended again before it trains again",
        (
            (HALF, _suspend(value=True)),
            (phase("Suspended"), _suspend(value=False)),
            (_restoring(1), _suspend(value=True)),
            (phase("Suspended"), _suspend(value=False)),
        ),
        TIGHT,
        replaced=EVERYBODY,
    ),
    Scenario(
        "suspended when it is all but trained",
        (
            (trained(1800), _suspend(value=True)),
            (lambda c: phase("Suspended")(c) or phase("Succeeded")(c), _suspend(value=False)),
        ),
        TIGHT,
        replaced=EVERYBODY,
    ),
    Scenario(
        "suspended when it is trained",
        ((_trained, _suspend(value=True)),),
    ),
    Scenario(
        "suspended before anything is trained",
        ((_runs(1), _suspend(value=True)), (phase("Suspended"), _suspend(value=False))),
        TIGHT,
        replaced=EVERYBODY,
    ),
    Scenario(
        "suspended while a shard hangs",
        (
            (HALF, _both(lambda c: c.stop("shard", 1), _suspend(value=True))),
            (phase("Suspended"), _suspend(value=False)),
        ),
        replaced=EVERYBODY,
    ),
    Scenario(
        "suspended while a shard's node is lost",
        (
            (HALF, _both(lambda c: c.lose_node("shard", 1), _suspend(value=True))),
            (phase("Suspended"), _suspend(value=False)),
        ),
        replaced=EVERYBODY,
    ),
    Scenario(
        "suspended while a shard restores",
        ((HALF, _kill("shard", 1)), (_restoring(1), _suspend(value=True)), (phase("Suspended"), _suspend(value=False))),
        replaced=EVERYBODY,
    ),
    Scenario("deleted and applied again", ((HALF, _reapply),), replaced=EVERYBODY),
    Scenario(
        "a replacement is refused for a while",
        ((HALF, _both(_quota(0), _kill("shard", 1))), (after(8), _quota(None))),
        replaced=("shard/1",),
    ),
    Scenario(
        "unschedulable for ever",
        ((after(0), lambda c: setattr(c, "unschedulable", "0/3 nodes are available")),),
        phase="Failed",
    ),
    Scenario("everybody is killed", ((HALF, _everybody),), replaced=EVERYBODY),
    Scenario(
        "the newest save is damaged",
        ((HALF, _both(damage_save(1), _kill("shard", 1))),),
        replaced=("shard/1",),
    ),
    Scenario(
        "the newest anchor is damaged",
        (
            (
                trained(1300),
                _both(damage_anchor, _kill("shard", 1)),
            ),
        ),
        TIGHT,
        replaced=("shard/1",),
    ),
)
