"""Further pods of a job with a trainer's access to its store: a tool pod for `cprjob`, and cleanup pods.

They have the image, service account, credentials and volumes of a trainer's pod, and none of its resources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cpr_contract import env
from cpr_operator.api.quantities import main_container
from cpr_operator.desired.mounts import (
    StoreAccess,
    spec_annotations,
    spec_mounts,
    spec_variables,
    spec_volumes,
    store_access,
)
from cpr_operator.desired.names import cleanup_labels, cleanup_name, metadata, tool_labels, tool_name
from cpr_operator.desired.pod import CONFINED, CONFINED_CONTAINER, DEFAULT_RESOURCES, PodPlan
from cpr_operator.desired.template import merge

Manifest = dict[str, Any]

#: Resources of a cleanup pod: enough to list and delete objects with the image's code, torch included.
CLEANUP_RESOURCES = {"cpu": "250m", "memory": "512Mi"}

#: Maximum seconds of a tool's pod, so that a forgotten one ends.
TOOL_MAX_S = 6 * 3600
#: Its program waits: commands are run in the pod by exec.
_WAIT = f"import time; time.sleep({TOOL_MAX_S})"


def store_pod(
    plan: PodPlan, own: Mapping[str, Any], container: Mapping[str, Any], *, reads_data: bool = False
) -> Manifest:
    """A pod with the metadata `own`, and with the fields of `container` in its main container."""
    template = plan.spec.trainers.template
    access = store_access(plan.spec, reads_data=reads_data)
    main = {
        "name": env.MAIN_CONTAINER,
        "image": plan.image,
        "env": _environment(plan, access),
        "volumeMounts": [
            {"name": "cprjob-scratch", "mountPath": env.SCRATCH_MOUNT},
            *spec_mounts(plan.job_spec),
            *access.mounts,
        ],
        **CONFINED_CONTAINER,
        **container,
    }
    if annotations := spec_annotations(plan.job_spec):
        own = {**own, "annotations": annotations}
    required = {
        **CONFINED,
        "terminationGracePeriodSeconds": 1,
        "containers": [main],
        "volumes": [
            {"name": "cprjob-scratch", "emptyDir": {}},
            *spec_volumes(plan.job_spec),
            *access.volumes,
        ],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": merge(template.get("metadata") or {}, own),
        "spec": merge(_unsized(template.get("spec") or {}), required),
    }


def tool_pod(plan: PodPlan, suffix: str) -> Manifest:
    """The pod in which `cprjob` reads the saves of a job. It has the size of a shard, which it may have to load.

    Labels that select members are removed, also those of the user's template.
    """
    shard = main_container(plan.spec.shards.template)
    resources = shard.get("resources") or {"requests": DEFAULT_RESOURCES, "limits": DEFAULT_RESOURCES}
    own = metadata(plan.job, tool_name(plan.job, suffix)) | {"labels": tool_labels(plan.job)}
    command = {"command": ["python3", "-c", _WAIT], "args": [], "resources": resources}
    pod = store_pod(plan, own, command, reads_data=True)
    pod["spec"]["activeDeadlineSeconds"] = TOOL_MAX_S
    labels = pod["metadata"]["labels"]
    pod["metadata"]["labels"] = {key: value for key, value in labels.items() if not key.startswith(f"{env.GROUP}/")}
    return pod


def cleanup_pod(plan: PodPlan, attempt: int, spared: tuple[str, ...]) -> Manifest:
    """The pod that deletes the job's saves, at this attempt. The objects of the anchors `spared` (keys) stay."""
    own = metadata(plan.job, cleanup_name(plan.job, attempt)) | {"labels": cleanup_labels(plan.job, attempt)}
    container = {
        "args": [env.ROLE_CLEANUP, *(argument for key in spared for argument in ("--spare", key))],
        "resources": {"requests": CLEANUP_RESOURCES, "limits": CLEANUP_RESOURCES},
    }
    return store_pod(plan, own, container)


def _unsized(spec: Mapping[str, Any]) -> Manifest:
    """The spec of a trainer's pod without the resources of its main container, including accelerators."""
    containers = [
        {key: value for key, value in each.items() if key != "resources" or each.get("name") != env.MAIN_CONTAINER}
        for each in spec.get("containers") or ()
    ]
    return {**spec, "containers": containers}


def _environment(plan: PodPlan, access: StoreAccess) -> list[Manifest]:
    values = {
        **spec_variables(plan.job_spec),
        env.TERMINATION_FILE: env.TERMINATION_MOUNT,
        **access.variables,
    }
    return [{"name": name, "value": value} for name, value in values.items()]
