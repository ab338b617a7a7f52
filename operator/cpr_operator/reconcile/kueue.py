"""Read a Workload of Kueue: whether the job has quota or must release it, and where its pods may run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from cpr_contract import env
from cpr_operator.api.pod_placement import Placement, Quota
from cpr_operator.cluster.protocol import Manifest
from cpr_operator.cluster.views import PodView
from cpr_operator.desired.workload import QUOTA_FINALIZER, Place

#: The ClusterQueue has reserved quota for the Workload.
RESERVED: Final = "QuotaReserved"
_ROLES = frozenset({env.ROLE_TRAINER, env.ROLE_SHARD, env.ROLE_SPARE, env.ROLE_PUBLISHER})


@dataclass(frozen=True, slots=True)
class Queue:
    """A job's place in its queue.

    prebuilt: the name of a Workload that was created before the job, such as by MultiKueue; empty for the job's own.
    enabled: the operator may use Kueue.
    known: the API server has answered whether there is a Workload.
    flavors: the ResourceFlavors, by name, with which the Workload was admitted.
    refused: the API server's message, if it refused a request for the Workload.
    """

    place: Place
    prebuilt: str = ""
    enabled: bool = True
    known: bool = True
    workload: Manifest | None = None
    flavors: Mapping[str, Manifest] = field(default_factory=dict)
    refused: str = ""

    @property
    def usable(self) -> bool:
        """True if the operator has access to Kueue."""
        return self.enabled and not self.refused


@dataclass(frozen=True, slots=True)
class Admitted:
    """The job's pods may run."""

    quota: Quota


@dataclass(frozen=True, slots=True)
class Waits:
    """The job has no quota."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Evicted:
    """The job must release its quota."""

    reason: str
    message: str


QueueState = Admitted | Waits | Evicted


def queue_state(queue: Queue) -> QueueState:
    """Return the job's state in the queue."""
    place, workload = queue.place, queue.workload
    if not queue.enabled:
        return Waits(
            "KueueDisabled",
            f"the job requests the queue {place.queue}, but this operator does not use Kueue: install the chart with "
            "kueue.enabled=true, or create the job without the label kueue.x-k8s.io/queue-name",
        )
    if queue.refused:
        return Waits("KueueRefused", f"{queue.refused}; see docs/queues.md")
    if workload is None and queue.prebuilt:
        return Waits("WorkloadMissing", f"the Workload {queue.prebuilt}, which the job's label names, does not exist")
    if workload is None:
        return Waits("Queued", f"the job enters the queue {place.queue}")
    return _evicted(workload) or _admitted(queue, workload)


def quota_of(queue: Queue | None) -> Quota | None:
    """Return the quota of a job that starts now; None if it needs none."""
    if queue is None:
        return None
    admitted = queue_state(queue)
    assert isinstance(admitted, Admitted), "a job without quota does not start"
    return admitted.quota


def holds_quota(workload: Manifest) -> bool:
    """Return whether quota is reserved for the Workload."""
    return bool(true_condition(workload, RESERVED))


def spares_in(workload: Manifest) -> int:
    """Return the number of spares in the Workload."""
    sets = workload["spec"].get("podSets") or ()
    return sum(int(each["count"]) for each in sets if each["name"] == env.ROLE_SPARE)


def uses_quota(pods: Iterable[PodView], now: float) -> bool:
    """Return whether any pod of the job may still run. A pod under deletion may, unless its node is lost."""
    return any(pod.role in _ROLES and not pod.ended and not pod.is_stuck(now) for pod in pods)


def owner_of(workload: Manifest) -> str:
    """Return the uid of the job that controls the Workload; empty if none does."""
    owners = workload["metadata"].get("ownerReferences") or ()
    return next((str(each["uid"]) for each in owners if each.get("controller")), "")


def is_deleted(workload: Manifest) -> bool:
    """Return whether the Workload is being deleted. It stays while the quota is used."""
    return "deletionTimestamp" in workload["metadata"]


def awaits_release(workload: Manifest) -> bool:
    """Return whether the operator's finalizer must go once no pod uses the quota: it is deleted or finished."""
    ours = QUOTA_FINALIZER in (workload["metadata"].get("finalizers") or ())
    return ours and (is_deleted(workload) or bool(true_condition(workload, "Finished")))


def true_condition(workload: Manifest, kind: str) -> Mapping[str, Any]:
    """Return the condition of this type if it is True; else an empty one."""
    found = (
        each for each in _listed(workload, "conditions") if each.get("type") == kind and each.get("status") == "True"
    )
    return next(found, {})


def flavors_of(workload: Manifest) -> tuple[str, ...]:
    """Return the names of the flavors with which the Workload was admitted."""
    names = {
        name
        for each in _listed(workload, "admission", "podSetAssignments")
        for name in (each.get("flavors") or {}).values()
    }
    return tuple(sorted(names))


def with_changed(workload: Manifest, stamp: str, *changes: tuple[str, bool, str, str]) -> list[dict[str, Any]]:
    """Return a Workload's conditions with changes (type, status, reason, message) at the time `stamp`, RFC 3339."""
    conditions = {str(each["type"]): dict(each) for each in _listed(workload, "conditions")}
    for kind, value, reason, message in changes:
        status = "True" if value else "False"
        old = conditions.get(kind, {})
        since = old["lastTransitionTime"] if old.get("status") == status else stamp
        conditions[kind] = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": since,
            "observedGeneration": workload["metadata"].get("generation", 0),
        }
    return list(conditions.values())


def _evicted(workload: Manifest) -> Evicted | None:
    if is_deleted(workload):
        return Evicted("Deleted", "the job's Workload was deleted")
    for kind in ("Evicted", "Finished"):
        if condition := true_condition(workload, kind):
            return Evicted(str(condition.get("reason") or kind), str(condition.get("message", "")))
    if workload["spec"].get("active") is False:
        return Evicted("Deactivated", "the Workload is not active; set its spec.active to true")
    return None


def _admitted(queue: Queue, workload: Manifest) -> Admitted | Waits:
    """Return the quota, or why there is none: the Workload waits, an admission check does, or a flavor is unusable."""
    name = queue.place.queue
    if true_condition(workload, "Admitted"):
        try:
            cluster_queue = workload["status"]["admission"].get("clusterQueue", "")
            placements = tuple(
                _placement(queue, workload, s)
                for s in _listed(workload, "admission", "podSetAssignments")
                if s["name"] in _ROLES
            )
            return Admitted(Quota(queue=name, cluster_queue=cluster_queue, placements=placements))
        except KeyError as error:
            return Waits("FlavorMissing", f"the ResourceFlavor {error} does not exist or cannot be read")
        except ValidationError as error:
            return Waits("FlavorInvalid", f"a ResourceFlavor cannot be used: {error}")
    if holds_quota(workload):
        pending = [
            f"{c['name']}: {c.get('message') or c.get('state', 'Pending')}"
            for c in _listed(workload, "admissionChecks")
            if c.get("state") != "Ready"
        ]
        return Waits("AdmissionChecks", "; ".join(pending) or f"{name} has quota for the job, and checks it")
    condition = next((each for each in _listed(workload, "conditions") if each.get("type") == RESERVED), {})
    message = str(condition.get("message", "")) or f"the job waits for its turn in the queue {name}"
    return Waits("WaitsForQuota", message)


def _placement(queue: Queue, workload: Manifest, assigned: Manifest) -> Placement:
    """Return the placement of a pod set, by its flavors and by admission checks. Raises KeyError, ValidationError."""
    selector: dict[str, str] = {}
    tolerations: list[Any] = []
    for name in sorted(set((assigned.get("flavors") or {}).values())):
        flavor = queue.flavors[name].get("spec") or {}
        selector |= flavor.get("nodeLabels") or {}
        tolerations += flavor.get("tolerations") or ()
    for update in (each for check in _listed(workload, "admissionChecks") for each in check.get("podSetUpdates") or ()):
        if update.get("name") == assigned["name"]:
            selector |= update.get("nodeSelector") or {}
            tolerations += update.get("tolerations") or ()
    unique = [each for i, each in enumerate(tolerations) if each not in tolerations[:i]]
    return Placement.model_validate({"role": assigned["name"], "nodeSelector": selector, "tolerations": unique})


def _listed(workload: Manifest, *path: str) -> tuple[Manifest, ...]:
    """Return the list at a path of the Workload's status; empty if it is absent."""
    found: Any = workload.get("status")
    for name in path:
        found = (found or {}).get(name)
    return tuple(found or ())
