"""Jobs that are deleted with their saves: what may be in the way, and where it ends."""

from __future__ import annotations

from dataclasses import replace

from cpr_contract.codec import to_json
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.validate import parse_spec
from simulation.control_plane.cluster import FakeCluster
from simulation.control_plane.failpoints import kill, quota
from simulation.control_plane.run import RunResult
from simulation.control_plane.workload import Action, Scenario, after, both, phase, runs, spec, suspend, trained

BEGUN = trained(300)
WITH_SAVES = spec(snapshots__deleteWithJob=True)


def delete(cluster: FakeCluster) -> None:
    cluster.user_deletes("job")


def store(*, down: bool) -> Action:
    return lambda cluster: setattr(cluster.plane().store, "down", down)


def terminate_namespace(cluster: FakeCluster) -> None:
    cluster.terminating = True


def cleaning(cluster: FakeCluster) -> bool:
    """A cleanup runs."""
    return any(pod.view().role == "cleanup" and pod.phase == "Running" for pod in cluster.pods.values())


def gone(cluster: FakeCluster) -> bool:
    return ("default", "job") not in cluster.jobs


def another_restores_from(anchor: str) -> Action:
    """A job that has begun with an anchor of the one that is deleted, and has none of its own yet."""

    def act(cluster: FakeCluster) -> None:
        wanted = spec(snapshots__restoreFrom=anchor)
        heir = cluster.add_job("heir", wanted, uid="fedcba98-2222")
        told = to_json(to_job_spec(parse_spec(wanted), heir.uid, heir.name))
        status = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "runtime": {"jobSpec": told}}
        cluster.jobs["default", "heir"] = replace(heir, status=status)

    return act


def lose_a_node(cluster: FakeCluster) -> None:
    cluster.lose_node("shard", 1)


DELETIONS = (
    Scenario("deleted", ((BEGUN, delete),), spec(), "Running"),
    Scenario("deleted with its saves", ((BEGUN, delete),), WITH_SAVES, "Running"),
    Scenario(
        "deleted with its saves before it began",
        ((phase("Suspended"), delete),),
        spec(snapshots__deleteWithJob=True, suspend=True),
        "Suspended",
    ),
    Scenario("deleted with its saves before anything is trained", ((runs(1), delete),), WITH_SAVES, "Starting"),
    Scenario("deleted with its saves when it is over", ((phase("Succeeded"), delete),), WITH_SAVES),
    Scenario(
        "deleted with its saves in time",
        ((gone, lambda _: None),),
        spec(snapshots__deleteWithJob=True, ttlSecondsAfterFinished=10),
    ),
    Scenario(
        "deleted with its saves while it is suspended",
        ((BEGUN, suspend(value=True)), (phase("Suspended"), delete)),
        WITH_SAVES,
        "Suspended",
    ),
    Scenario(
        "deleted with its saves while a shard is replaced",
        ((BEGUN, both(kill("shard", 1), delete)),),
        WITH_SAVES,
        "Running",
    ),
    Scenario(
        "deleted with its saves while a node is lost", ((BEGUN, both(lose_a_node, delete)),), WITH_SAVES, "Running"
    ),
    Scenario(
        "deleted with its saves while the store is down for a while",
        ((BEGUN, both(store(down=True), delete)), (after(25), store(down=False))),
        WITH_SAVES,
        "Running",
    ),
    Scenario(
        "deleted with its saves while the store is down for ever",
        ((BEGUN, both(store(down=True), delete)),),
        WITH_SAVES,
        "Running",
        deadline_s=400,
    ),
    Scenario(
        "deleted with its saves while no pod can be created",
        ((BEGUN, both(quota(0), delete)),),
        WITH_SAVES,
        "Running",
        deadline_s=700,
    ),
    Scenario(
        "deleted with its saves and its namespace",
        ((BEGUN, both(terminate_namespace, delete)),),
        WITH_SAVES,
        "Running",
    ),
    Scenario(
        "deleted with its saves, and the cleanup is killed",
        ((BEGUN, delete), (cleaning, kill("cleanup", 0))),
        WITH_SAVES,
        "Running",
    ),
    Scenario(
        "deleted with its saves, of which another job needs an anchor",
        ((BEGUN, both(another_restores_from("12345678-0000/anchor"), delete)),),
        WITH_SAVES,
        "Running",
    ),
)


#: Those that together make every call that a deletion can make.
MANIFOLD = tuple(
    scenario
    for scenario in DELETIONS
    if scenario.name
    in {
        "deleted with its saves",
        "deleted with its saves in time",
        "deleted with its saves while it is suspended",
        "deleted with its saves while the store is down for a while",
        "deleted with its saves while the store is down for ever",
        "deleted with its saves and its namespace",
    }
)


def end_of_deletion(life: RunResult) -> tuple[object, ...]:
    """Whether the job is gone, what was spared if its saves are, and whether anybody was told that they are not."""
    planes = [plane.store.cleaned for uid, plane in life.cluster.planes.items() if uid.startswith("12345678")]
    told = {event.reason for event in life.cluster.events.values()} & {"SavesDeleted", "SavesLeft"}
    return ("default", "job") in life.cluster.jobs, planes, told
