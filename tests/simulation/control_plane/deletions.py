"""Scenarios of jobs that are deleted with their saves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cpr_contract.codec import to_json
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.validate import parse_spec
from simulation.control_plane.cluster import SimulatedCluster
from simulation.control_plane.failpoints import kill, lose_node, quota, store
from simulation.control_plane.run import RunResult
from simulation.control_plane.workload import (
    Action,
    Scenario,
    Spec,
    Trigger,
    after,
    both,
    case,
    phase,
    runs,
    spec,
    suspend,
    trained,
)

BEGUN = trained(300)
WITH_SAVES = spec(snapshots__deleteWithJob=True)


def delete(cluster: SimulatedCluster) -> None:
    cluster.user_deletes("job")


def terminate_namespace(cluster: SimulatedCluster) -> None:
    cluster.terminating = True


def cleaning(cluster: SimulatedCluster) -> bool:
    """A cleanup runs."""
    return any(pod.view().role == "cleanup" and pod.phase == "Running" for pod in cluster.pods.values())


def is_deleted(cluster: SimulatedCluster) -> bool:
    return ("default", "job") not in cluster.jobs


def another_restores_from(anchor: str) -> Action:
    """A job that has begun with an anchor of the one that is deleted, and has none of its own yet."""

    def act(cluster: SimulatedCluster) -> None:
        restored = spec(snapshots__restoreFrom=anchor)
        successor = cluster.add_job("successor", restored, uid="fedcba98-2222")
        job_spec = to_json(to_job_spec(parse_spec(restored), successor.uid, successor.name))
        status = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "runtime": {"jobSpec": job_spec}}
        cluster.jobs["default", "successor"] = replace(successor, status=status)

    return act


def deletion(name: str, *steps: tuple[Trigger, Action], spec: Spec = WITH_SAVES, **fields: Any) -> Scenario:
    """A job that is deleted with its saves, by default while it runs."""
    return case(name, *steps, spec=spec, **{"ends": "Running"} | fields)


DELETIONS = (
    deletion("deleted", (BEGUN, delete), spec=spec()),
    deletion("deleted with its saves", (BEGUN, delete)),
    case(
        "deleted with its saves before it began",
        (phase("Suspended"), delete),
        spec=spec(snapshots__deleteWithJob=True, suspend=True),
        ends="Suspended",
    ),
    deletion("deleted with its saves before anything is trained", (runs(1), delete), ends="Starting"),
    deletion("deleted with its saves when it is over", (phase("Succeeded"), delete), ends="Succeeded"),
    case(
        "deleted with its saves in time",
        (is_deleted, lambda _: None),
        spec=spec(snapshots__deleteWithJob=True, ttlSecondsAfterFinished=10),
    ),
    deletion(
        "deleted with its saves while it is suspended", (BEGUN, suspend), (phase("Suspended"), delete), ends="Suspended"
    ),
    deletion("deleted with its saves while a shard is replaced", (BEGUN, both(kill("shard", 1), delete))),
    deletion("deleted with its saves while a node is lost", (BEGUN, both(lose_node("shard", 1), delete))),
    deletion(
        "deleted with its saves while the store is down for a while",
        (BEGUN, both(store(down=True), delete)),
        (after(25), store(down=False)),
    ),
    deletion(
        "deleted with its saves while the store is down for ever",
        (BEGUN, both(store(down=True), delete)),
        deadline_s=400,
    ),
    deletion("deleted with its saves while no pod can be created", (BEGUN, both(quota(0), delete)), deadline_s=700),
    deletion("deleted with its saves and its namespace", (BEGUN, both(terminate_namespace, delete))),
    deletion("deleted with its saves, and the cleanup is killed", (BEGUN, delete), (cleaning, kill("cleanup", 0))),
    deletion(
        "deleted with its saves, except an anchor that another job needs",
        (BEGUN, both(another_restores_from("12345678-0000/anchor"), delete)),
    ),
)


#: Together they make every call that a deletion can make.
_EVERY_CALL = {"", " in time", " while it is suspended", " and its namespace"}
_EVERY_CALL |= {f" while the store is down for {long}" for long in ("a while", "ever")}
MANIFOLD = tuple(each for each in DELETIONS if each.name.removeprefix("deleted with its saves") in _EVERY_CALL)


def end_of_deletion(result: RunResult) -> tuple[object, ...]:
    """Return whether the job is deleted, the anchors that its cleanup spared, and the events about its saves."""
    planes = [plane.store.cleaned for uid, plane in result.cluster.planes.items() if uid.startswith("12345678")]
    reported = {event.reason for event in result.cluster.events.values()} & {"SavesDeleted", "SavesLeft"}
    return ("default", "job") in result.cluster.jobs, planes, reported
