"""Kueue's changes of the job's Workload, for scenarios over the simulated cluster."""

from __future__ import annotations

from typing import Any

from cpr_operator.desired.workload import KUEUE, VERSION
from cpr_operator.reconcile.kueue import holds_quota, is_deleted, true_condition, with_changed
from simulation.control_plane.cluster import SimulatedCluster
from simulation.control_plane.workload import Trigger

STAMP = "2026-01-01T00:00:00Z"
FLAVOR = {
    "apiVersion": f"{KUEUE}/{VERSION}",
    "kind": "ResourceFlavor",
    "metadata": {"name": "spot"},
    "spec": {"nodeLabels": {"pool": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]},
}


def workload(cluster: SimulatedCluster) -> dict[str, Any] | None:
    """The job's Workload."""
    found = [dict(each) for each in cluster.objects.values() if each["kind"] == "Workload"]
    assert len(found) <= 1
    return found[0] if found else None


def counts(cluster: SimulatedCluster) -> dict[str, int]:
    """Return the number of pods of the Workload."""
    found = workload(cluster)
    return {each["name"]: each["count"] for each in found["spec"]["podSets"]} if found else {}


def waits(trainers: int = 2) -> Trigger:
    """A Workload for that many trainers waits for quota."""

    def waiting(cluster: SimulatedCluster) -> bool:
        found = workload(cluster)
        if found is None or is_deleted(found) or holds_quota(found):
            return False
        return counts(cluster)["trainer"] == trainers

    return waiting


def admit(cluster: SimulatedCluster) -> None:
    """The ClusterQueue has capacity for all pods, on nodes of the flavor `spot`."""
    cluster.applied.apply(FLAVOR)
    assigned = [{"name": name, "flavors": {"cpu": "spot", "memory": "spot"}} for name in counts(cluster)]
    _change(
        cluster,
        {"admission": {"clusterQueue": "team", "podSetAssignments": assigned}},
        ("QuotaReserved", True, "QuotaReserved", ""),
        ("Admitted", True, "Admitted", ""),
        ("Evicted", False, "QuotaReserved", ""),
    )


def preempt(cluster: SimulatedCluster) -> None:
    """A job of higher priority needs the quota."""
    _change(cluster, {}, ("Evicted", True, "Preempted", "to accommodate another one"))


def delete_workload(cluster: SimulatedCluster) -> None:
    """A user deletes the Workload."""
    found = workload(cluster)
    assert found is not None
    cluster.applied.delete("Workload", found["metadata"]["namespace"], found["metadata"]["name"], STAMP)


def no_workload(cluster: SimulatedCluster) -> bool:
    """The job has left its queue."""
    return workload(cluster) is None


def is_finished(cluster: SimulatedCluster) -> bool:
    """The Workload is over."""
    found = workload(cluster)
    return found is not None and bool(true_condition(found, "Finished"))


def _change(cluster: SimulatedCluster, status: dict[str, Any], *changes: tuple[str, bool, str, str]) -> None:
    found = workload(cluster)
    assert found is not None
    cluster.applied.merge_status(found, {**status, "conditions": with_changed(found, STAMP, *changes)})
