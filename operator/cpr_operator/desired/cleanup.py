"""The pod that deletes the saves of a job that is being deleted.

It has the image, service account, credentials and volumes of a trainer's pod, so it has the same access to the store.
Its resources are small.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cpr_contract import env
from cpr_operator.desired.names import cleanup_labels, cleanup_name, metadata
from cpr_operator.desired.pod import CONFINED, CONFINED_CONTAINER, PodPlan
from cpr_operator.desired.storage import store_mounts, store_variables, store_volumes
from cpr_operator.desired.template import merge

#: Enough to list and delete objects with torch loaded, which comes with the image's code.
RESOURCES = {"cpu": "250m", "memory": "512Mi"}

Manifest = dict[str, Any]


def cleanup_pod(plan: PodPlan, attempt: int, spared: tuple[str, ...]) -> Manifest:
    """The pod of one attempt. It spares all objects that the anchors `spared` (keys) need."""
    template = plan.spec.trainers.template
    store = plan.spec.snapshots.store
    container = {
        "name": env.MAIN_CONTAINER,
        "image": plan.image,
        "args": [env.ROLE_CLEANUP, *(word for key in spared for word in ("--spare", key))],
        "env": _environment(plan),
        "resources": {"requests": RESOURCES, "limits": RESOURCES},
        "volumeMounts": [{"name": "cprjob-scratch", "mountPath": env.SCRATCH_MOUNT}, *store_mounts(store)],
        **CONFINED_CONTAINER,
    }
    required = {
        **CONFINED,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": "cprjob-scratch", "emptyDir": {}}, *store_volumes(store)],
    }
    own = metadata(plan.job, cleanup_name(plan.job, attempt)) | {"labels": cleanup_labels(plan.job, attempt)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": merge(template.get("metadata") or {}, own),
        "spec": merge(_unsized(template.get("spec") or {}), required),
    }


def _unsized(spec: Mapping[str, Any]) -> Manifest:
    """The spec of a trainer's pod without the resources of its main container, including accelerators."""
    containers = [
        {key: value for key, value in each.items() if key != "resources" or each.get("name") != env.MAIN_CONTAINER}
        for each in spec.get("containers") or ()
    ]
    return {**spec, "containers": containers}


def _environment(plan: PodPlan) -> list[Manifest]:
    values = {
        env.SPEC: plan.job_spec,
        env.TERMINATION_FILE: env.TERMINATION_MOUNT,
        **store_variables(plan.spec.snapshots.store),
    }
    return [{"name": name, "value": value} for name, value in values.items()]
