"""The Workload of a job in a queue of Kueue (kueue.x-k8s.io/v1beta2): one pod set for each role.

Kueue counts the requests of the pod sets, and chooses the flavors of nodes that their placement allows. A pod set
therefore has just these parts of the manifests of the job's pods.

A finalizer retains the Workload, and thereby the quota, until the job's pods are deleted, also if a user deletes it or
the job. Pods as further owners would cost the garbage collector half a million requests for a job of a thousand pods.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpr_contract import env
from cpr_operator.desired.job_objects import Manifest
from cpr_operator.desired.names import JobId, metadata
from cpr_operator.desired.pod import PodPlan, role_spec, spare_manifest
from cpr_operator.desired.store_pod import publisher_pod

KUEUE, VERSION, PLURAL = "kueue.x-k8s.io", "v1beta2", "workloads"
QUEUE_LABEL, PRIORITY_LABEL = f"{KUEUE}/queue-name", f"{KUEUE}/priority-class"
#: The label or annotation of a job with the name of its Workload, if that was created before the job.
PREBUILT = f"{KUEUE}/prebuilt-workload-name"
#: The value of `spec.managedBy` for a job that Kueue runs in another cluster.
MULTIKUEUE = f"{KUEUE}/multikueue"
#: Retains the Workload until no pod of the job uses its quota.
QUOTA_FINALIZER = f"{env.GROUP}/quota-in-use"
#: The digest of the requests in the Workload: another digest needs another Workload.
ANNOTATION_DIGEST = f"{env.GROUP}/pod-sets"

#: The fields that decide about quota and flavors.
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
_OF_CONTAINER = ("name", "resources", "restartPolicy")


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a job: a LocalQueue, and a WorkloadPriorityClass with its value, if the job names one."""

    queue: str
    priority_class: str = ""
    priority: int = 0


def workload(plan: PodPlan, place: Place) -> Manifest:
    """The Workload of the job, with the digest of its requests."""
    trainers, shards = plan.spec.trainers.replicas, plan.spec.shards
    sets = [
        _pod_set(env.ROLE_TRAINER, trainers, role_spec(plan, "trainer")),
        _pod_set(env.ROLE_SHARD, shards.replicas, role_spec(plan, "shard")),
    ]
    if shards.spares:
        sets.append(_pod_set(env.ROLE_SPARE, shards.spares, spare_manifest(plan, "")["spec"]))
    if plan.spec.publish is not None:
        sets.append(_pod_set(env.ROLE_PUBLISHER, 1, publisher_pod(plan, 0)["spec"]))
    spec: Manifest = {"queueName": place.queue, "podSets": sets}
    labels = {QUEUE_LABEL: place.queue}
    if place.priority_class:
        reference = {"group": KUEUE, "kind": "WorkloadPriorityClass", "name": place.priority_class}
        spec |= {"priorityClassRef": reference, "priority": place.priority}
        labels[PRIORITY_LABEL] = place.priority_class
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    own = metadata(plan.job, plan.job.stem)
    own |= {
        "labels": own["labels"] | labels,
        "annotations": {ANNOTATION_DIGEST: digest},
        "finalizers": [QUOTA_FINALIZER],
    }
    return {"apiVersion": f"{KUEUE}/{VERSION}", "kind": "Workload", "metadata": own, "spec": spec}


def owned_workload(job: JobId, found: Mapping[str, Any]) -> Manifest:
    """The metadata of a Workload, as it was read, that belongs to the job and holds its quota while it has pods.

    With its uid the API server refuses another Workload of this name, and creates none.
    """
    name, uid = found["metadata"]["name"], found["metadata"]["uid"]
    meta = metadata(job, name) | {"uid": uid, "finalizers": [QUOTA_FINALIZER]}
    return {"apiVersion": f"{KUEUE}/{VERSION}", "kind": "Workload", "metadata": meta}


def digest_of(document: Mapping[str, Any]) -> str:
    """The digest of a Workload's requests; empty if the operator did not create it."""
    annotations: Mapping[str, str] = document["metadata"].get("annotations") or {}
    return annotations.get(ANNOTATION_DIGEST, "")


def _pod_set(name: str, count: int, pod: Manifest) -> Manifest:
    spec = {part: pod[part] for part in _OF_POD if part in pod}
    for kind in ("initContainers", "containers"):
        if pod.get(kind):
            spec[kind] = [{part: each[part] for part in _OF_CONTAINER if part in each} for each in pod[kind]]
    return {"name": name, "count": count, "template": {"spec": spec}}
