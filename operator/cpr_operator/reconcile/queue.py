"""What a Workload of Kueue says: whether the job has quota, is to give it back, and where its pods may run. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from pydantic import ValidationError

from cpr_operator.api.placement import Placement, Quota
from cpr_operator.cluster.protocol import Manifest
from cpr_operator.desired.workload import Place

#: The ClusterQueue has set quota aside for the Workload.
RESERVED = "QuotaReserved"
_ROLES = ("trainer", "shard", "spare")


@dataclass(frozen=True, slots=True)
class Queue:
    """Where a job stands. `enabled`: the operator may use Kueue. `workload` is the job's own, None if there is none.

    `flavors` are the ResourceFlavors, by name, that the Workload was admitted with. `refused`: the server's words, if
    it did not show or take the Workload.
    """

    place: Place
    enabled: bool = True
    workload: Manifest | None = None
    flavors: Mapping[str, Manifest] = field(default_factory=dict)
    refused: str = ""

    @property
    def usable(self) -> bool:
        """Whether Kueue can be asked at all."""
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
    """The job is to give its quota back."""

    reason: str
    message: str


Standing = Admitted | Waits | Evicted


def standing(queue: Queue) -> Standing:
    """What the queue says of the job."""
    place, workload = queue.place, queue.workload
    if not queue.enabled:
        return Waits("KueueDisabled", _enable(place.queue))
    if queue.refused:
        return Waits("KueueRefused", f"{queue.refused}; install Kueue, and let the operator use it (docs/queues.md)")
    if workload is None:
        return Waits("Queued", f"the job enters the queue {place.queue}")
    return _evicted(workload) or _admitted(queue, workload)


def _evicted(workload: Manifest) -> Evicted | None:
    for kind in ("Evicted", "Finished"):
        if said := true_condition(workload, kind):
            return Evicted(_word(said), str(said.get("message", "")))
    if workload["spec"].get("active") is False:
        return Evicted("Deactivated", "the Workload is not active; set its spec.active to true")
    return None


def _admitted(queue: Queue, workload: Manifest) -> Admitted | Waits:
    if not true_condition(workload, "Admitted"):
        return _waits(workload, queue.place.queue)
    try:
        return Admitted(_quota(queue, workload))
    except KeyError as error:
        return Waits("FlavorMissing", f"the ResourceFlavor {error} does not exist or cannot be read")
    except ValidationError as error:
        return Waits("FlavorInvalid", f"a ResourceFlavor cannot be used: {error}")


def holds_quota(workload: Manifest) -> bool:
    """Whether quota is set aside for the Workload."""
    return bool(true_condition(workload, RESERVED))


def true_condition(workload: Manifest, kind: str) -> Mapping[str, Any]:
    """The condition of this type if it is True; else empty."""
    found = (each for each in _conditions(workload) if each.get("type") == kind and each.get("status") == "True")
    return next(found, {})


def flavors_of(workload: Manifest) -> tuple[str, ...]:
    """The flavors that the Workload was admitted with, by name."""
    names = {name for each in _assignments(workload) for name in (each.get("flavors") or {}).values()}
    return tuple(sorted(names))


def with_changed(workload: Manifest, stamp: str, *changes: tuple[str, bool, str, str]) -> list[dict[str, Any]]:
    """The conditions of a Workload with these: type, status, reason and message. `stamp` is the time, RFC 3339."""
    conditions = {str(each["type"]): dict(each) for each in _conditions(workload)}
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


def _waits(workload: Manifest, queue: str) -> Waits:
    """Why the Workload is not admitted: it has no quota, or an admission check is not done."""
    if holds_quota(workload):
        checks = (workload.get("status") or {}).get("admissionChecks") or ()
        pending = [f"{each['name']}: {each.get('message', '')}" for each in checks if each.get("state") != "Ready"]
        return Waits("AdmissionChecks", "; ".join(pending) or f"{queue} has quota for the job, and checks it")
    said = next((each for each in _conditions(workload) if each.get("type") == RESERVED), {})
    message = str(said.get("message", "")) or f"the job waits for its turn in the queue {queue}"
    return Waits("WaitsForQuota", message)


def _quota(queue: Queue, workload: Manifest) -> Quota:
    """Raises KeyError (a flavor is not there) and ValidationError."""
    admission = workload["status"]["admission"]
    placements = tuple(_placement(queue, workload, each) for each in _assignments(workload) if each["name"] in _ROLES)
    return Quota(queue=queue.place.queue, cluster_queue=admission.get("clusterQueue", ""), placements=placements)


def _placement(queue: Queue, workload: Manifest, assigned: Manifest) -> Placement:
    selector: dict[str, str] = {}
    tolerations: list[Any] = []
    for name in sorted(set((assigned.get("flavors") or {}).values())):
        flavor = queue.flavors[name].get("spec") or {}
        selector |= flavor.get("nodeLabels") or {}
        tolerations += flavor.get("tolerations") or ()
    for update in _updates(workload, assigned["name"]):
        selector |= update.get("nodeSelector") or {}
        tolerations += update.get("tolerations") or ()
    unique = [each for i, each in enumerate(tolerations) if each not in tolerations[:i]]
    return Placement.model_validate({"role": assigned["name"], "nodeSelector": selector, "tolerations": unique})


def _updates(workload: Manifest, pod_set: str) -> Iterator[Manifest]:
    """What admission checks add to the pods of a set."""
    for check in (workload.get("status") or {}).get("admissionChecks") or ():
        yield from (each for each in check.get("podSetUpdates") or () if each.get("name") == pod_set)


def _assignments(workload: Manifest) -> tuple[Manifest, ...]:
    admission = (workload.get("status") or {}).get("admission") or {}
    return tuple(admission.get("podSetAssignments") or ())


def _conditions(workload: Manifest) -> tuple[Mapping[str, Any], ...]:
    return tuple((workload.get("status") or {}).get("conditions") or ())


def _word(condition: Mapping[str, Any]) -> str:
    return str(condition.get("reason") or condition["type"])


def _enable(queue: str) -> str:
    return (
        f"the job asks for the queue {queue}, but this operator does not use Kueue: install the chart with "
        "kueue.enabled=true, or create the job without the label kueue.x-k8s.io/queue-name"
    )


def quota_of(queue: Queue | None) -> Quota | None:
    """The quota that a job that starts now runs under; None if it needs none."""
    if queue is None:
        return None
    match standing(queue):
        case Admitted(quota=quota):
            return quota
        case Waits() | Evicted():
            raise AssertionError("a job without quota does not start")
        case verdict:
            assert_never(verdict)
