"""The Workload by which a job stands in a queue of Kueue (kueue.x-k8s.io/v1beta1): one pod set for each role.

Kueue counts what the pod sets request, and chooses the flavors of nodes that their placement allows. So a pod set has
just these parts of the manifests from which the pods will be created.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpr_contract import env
from cpr_operator.desired.names import metadata
from cpr_operator.desired.pod import Manifest, PodPlan, role_spec, spare_spec

API_VERSION = "kueue.x-k8s.io/v1beta1"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
_PRIORITY_SOURCE = "kueue.x-k8s.io/workloadpriorityclass"
#: What the Workload asks for, as a digest: with another one there has to be another Workload.
ANNOTATION_DIGEST = f"{env.GROUP}/pod-sets"

#: What decides about quota and flavors.
_OF_POD = (
    "affinity",
    "nodeSelector",
    "overhead",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "tolerations",
    "topologySpreadConstraints",
)
_OF_CONTAINER = ("name", "image", "resources", "restartPolicy")


@dataclass(frozen=True, slots=True)
class Place:
    """Where in which queue: a LocalQueue, and a WorkloadPriorityClass with its value, if the job names one."""

    queue: str
    priority_class: str = ""
    priority: int = 0


def workload(plan: PodPlan, place: Place) -> Manifest:
    """The Workload of the job, with the digest of what it asks for."""
    spec: Manifest = {"queueName": place.queue, "podSets": _pod_sets(plan)}
    if place.priority_class:
        spec |= {
            "priorityClassName": place.priority_class,
            "priorityClassSource": _PRIORITY_SOURCE,
            "priority": place.priority,
        }
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    own = metadata(plan.job, plan.job.stem)
    own["labels"] |= {QUEUE_LABEL: place.queue} | (
        {PRIORITY_LABEL: place.priority_class} if place.priority_class else {}
    )
    own["annotations"] = {ANNOTATION_DIGEST: digest}
    return {"apiVersion": API_VERSION, "kind": "Workload", "metadata": own, "spec": spec}


def digest_of(document: Mapping[str, Any]) -> str:
    """What a Workload asks for, as a digest; empty if the operator has not made it."""
    annotations: Mapping[str, str] = document["metadata"].get("annotations") or {}
    return annotations.get(ANNOTATION_DIGEST, "")


def _pod_sets(plan: PodPlan) -> list[Manifest]:
    trainers, shards = plan.spec.trainers.replicas, plan.spec.shards.replicas
    sets = [
        _pod_set("trainer", trainers, role_spec(plan, "trainer")),
        _pod_set("shard", shards, role_spec(plan, "shard")),
    ]
    if plan.spec.shards.spares:
        sets.append(_pod_set(env.ROLE_SPARE, plan.spec.shards.spares, spare_spec(plan)))
    return sets


def _pod_set(name: str, count: int, pod: Manifest) -> Manifest:
    spec = {part: pod[part] for part in _OF_POD if part in pod}
    for kind in ("initContainers", "containers"):
        if pod.get(kind):
            spec[kind] = [{part: each[part] for part in _OF_CONTAINER if part in each} for each in pod[kind]]
    return {"name": name, "count": count, "template": {"spec": spec}}
