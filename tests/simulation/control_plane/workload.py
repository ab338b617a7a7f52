"""The job of a scenario, the steps of a scenario, and what users do to the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simulation.control_plane.cluster import SimulatedCluster

TOTAL = 2000
BATCH = 100
Spec = Mapping[str, Any]
#: A condition on the cluster, for the moment of a step.
Trigger = Callable[[SimulatedCluster], bool]
Action = Callable[[SimulatedCluster], None]


def spec(**changes: Any) -> dict[str, Any]:
    """A small job: 2000 samples, a save every 1 s or 400 samples, and no replay: what a shard loses is charged."""
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
    document["recovery"] = {"replay": {"mode": "Off"}} | document.get("recovery", {})
    return document


def partial_job(
    portion: float, *, shards: int = 2, trainers: int = 2, seconds: int = 1, **changes: Any
) -> dict[str, Any]:
    """Partial recovery within this budget, a save every second or 400 samples, and any number of restarts."""
    defaults: dict[str, Any] = {
        "accuracyBudget__portionOfLostSamples": portion,
        "recovery": {"mode": "Partial"},
        "shards__replicas": shards,
        "trainers__replicas": trainers,
        "snapshots__interval": {"mode": "Fixed", "seconds": seconds},
        "failurePolicy__restartLimit": {"count": 50},
        "failurePolicy__startupDeadlineSeconds": 600,
    }
    return spec(**defaults | changes)


@dataclass(frozen=True)
class Scenario:
    """`steps` happen in order, each once, when its trigger holds and the step before has happened."""

    name: str
    steps: tuple[tuple[Trigger, Action], ...] = ()
    spec: Mapping[str, Any] | None = None
    phase: str = "Succeeded"
    replaced: tuple[str, ...] = ()  # members that may have another uid at the end
    deadline_s: float = 300.0
    queue: str = ""  # the job stands in this queue of Kueue


def case(  # noqa: PLR0913 -- a row of a table
    name: str,
    *steps: tuple[Trigger, Action],
    spec: Spec | None = None,
    ends: str = "Succeeded",
    replaced: str = "",
    queue: str = "",
    deadline_s: float = 300.0,
) -> Scenario:
    """A scenario as a row of a table; `replaced` names members, separated by spaces."""
    return Scenario(name, steps, spec, ends, tuple(replaced.split()), deadline_s, queue)


def trained(samples: int) -> Trigger:
    """All trainers' common position has passed this many samples."""
    return lambda cluster: any(
        (t.samples or 0) >= samples for plane in cluster.planes.values() for t in plane.trainers.values()
    )


def phase(name: str) -> Trigger:
    return lambda cluster: cluster.jobs["default", "job"].status.get("phase") == name


def change_trainers_without_lockstep(cluster: SimulatedCluster) -> bool:
    """The operator has asked all trainers to meet."""
    return bool(cluster.jobs["default", "job"].status.get("meeting"))


def after(seconds: float) -> Trigger:
    """This long after the trigger was first evaluated."""
    since: list[float] = []

    def over(cluster: SimulatedCluster) -> bool:
        since.append(cluster.now)
        return cluster.now >= since[0] + seconds

    return over


def both(*actions: Action) -> Action:
    def act(cluster: SimulatedCluster) -> None:
        for action in actions:
            action(cluster)

    return act


def suspend(cluster: SimulatedCluster) -> None:
    cluster.set_spec("job", suspend=True)


def resume(cluster: SimulatedCluster) -> None:
    cluster.set_spec("job", suspend=False)


def resume_with(shards: int) -> Action:
    """Another number of shards, and then no longer suspended."""

    def act(cluster: SimulatedCluster) -> None:
        cluster.set_spec("job", shards={"replicas": shards})
        cluster.set_spec("job", suspend=False)

    return act


def scale(trainers: int) -> Action:
    """Another number of trainers, while the job trains."""

    def act(cluster: SimulatedCluster) -> None:
        before = cluster.jobs["default", "job"].spec["trainers"]
        cluster.set_spec("job", trainers={**before, "replicas": trainers})

    return act


def no_node(cluster: SimulatedCluster) -> None:
    """From now on no node has capacity for a new pod."""
    cluster.unschedulable = "0/3 nodes are available"


def any_node(cluster: SimulatedCluster) -> None:
    cluster.unschedulable = ""


def restoring(index: int) -> Trigger:
    """A process that restores this shard runs."""
    return lambda c: any(
        s.roster.index == index and s.roster.incarnation > 1 and s.ready_at is not None and s.generation == 0
        for s in c.plane().shards.values()
    )


def leader_ended(c: SimulatedCluster) -> bool:
    """The leader has ended well."""
    return any(pod.view().role == "trainer" and pod.phase == "Succeeded" for pod in c.pods.values())


def runs(index: int) -> Trigger:
    """The shard's process runs, and the operator has seen its pod."""

    def runs(c: SimulatedCluster) -> bool:
        seen = any(s["uid"] and s["index"] == index for s in c.jobs["default", "job"].status.get("shards", ()))
        return seen and c.member("shard", index).phase == "Running"

    return runs


def reapply(cluster: SimulatedCluster) -> None:
    job = cluster.jobs.pop(("default", "job"))
    cluster.collect_garbage(job.uid)
    cluster.add_job("job", job.spec, uid="abcdef00-1111")
