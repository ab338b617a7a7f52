"""Further pods of a job with a trainer's access to its store: tool pods of `cprjob`, publishers, and cleanup pods.

They have the image, service account, credentials and volumes of a trainer's pod, and none of its resources. A
publisher's pod is in the quota of a job in a queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cpr_contract import env
from cpr_operator.api.quantities import main_container, with_disk, with_more
from cpr_operator.api.sizes import publisher_size
from cpr_operator.desired.job_objects import Manifest
from cpr_operator.desired.names import metadata, pod_labels, publisher_name, recorder_name
from cpr_operator.desired.pod import (
    CONFINED,
    CONFINED_CONTAINER,
    DEFAULT_RESOURCES,
    PodFiles,
    PodPlan,
    encryption_labels,
    history_files,
    key_files,
    placed,
    resources_of,
    spec_files,
    store_files,
)
from cpr_operator.desired.template import merge

#: Resources of a cleanup pod: enough to list and delete objects with the image's code, torch included.
CLEANUP_RESOURCES = {"cpu": "250m", "memory": "512Mi"}

#: Seconds for a publisher to publish the newest model, once it has been asked to end.
PUBLISHER_GRACE_S = 300
_MIB_BITS = 20

#: Maximum seconds of a tool's pod, so that a forgotten one ends.
TOOL_MAX_S = 6 * 3600
#: Its program waits: commands are run in the pod by exec.
_WAIT = f"import time; time.sleep({TOOL_MAX_S})"


def store_pod(
    plan: PodPlan,
    own: Mapping[str, Any],
    container: Mapping[str, Any],
    *,
    reads_data: bool = False,
    record: str | None = None,
) -> Manifest:
    """A pod with the metadata `own`, and with the fields of `container` in its main container.

    record: the job's record, which the pod stores; None: none.
    """
    template = plan.spec.trainers.template
    spec, stores = spec_files(plan.job_spec), store_files(plan.spec, reads_data=reads_data)
    history = PodFiles() if record is None else history_files(record)
    variables = {
        **spec.variables,
        **history.variables,
        env.TERMINATION_FILE: env.TERMINATION_MOUNT,
        **stores.variables,
    }
    scratch = {"name": "cprjob-scratch", "mountPath": env.SCRATCH_MOUNT}
    main = {
        "name": env.MAIN_CONTAINER,
        "image": plan.image,
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "volumeMounts": [scratch, *history.mounts, *spec.mounts, *stores.mounts],
        **CONFINED_CONTAINER,
        **container,
    }
    required = {
        **CONFINED,
        "terminationGracePeriodSeconds": 1,
        "containers": [main],
        "volumes": [
            {"name": "cprjob-scratch", "emptyDir": {}},
            *history.volumes,
            *spec.volumes,
            *stores.volumes,
        ],
    }
    if annotations := spec.annotations | history.annotations:
        own = {**own, "annotations": annotations}
    given = template.get("spec") or {}
    # Without the resources of a trainer's main container, including accelerators.
    unsized = [
        {key: value for key, value in each.items() if key != "resources" or each.get("name") != env.MAIN_CONTAINER}
        for each in given.get("containers") or ()
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": merge(template.get("metadata") or {}, own),
        "spec": merge({**given, "containers": unsized}, required),
    }


def tool_pod(plan: PodPlan, suffix: str) -> Manifest:
    """The pod in which `cprjob` reads the saves of a job. It has the size of a shard, which it may have to load."""
    shard = main_container(plan.spec.shards.template)
    resources = shard.get("resources") or {"requests": DEFAULT_RESOURCES, "limits": DEFAULT_RESOURCES}
    # No labels that select members, also none of the user's template: the operator does not manage this pod.
    labels = {
        "app.kubernetes.io/name": "cprjob",
        "app.kubernetes.io/instance": plan.job.name,
        "app.kubernetes.io/component": "tool",
        "app.kubernetes.io/managed-by": "cprjob",
    }
    own = metadata(plan.job, f"{plan.job.stem}-tool-{suffix}") | {"labels": labels}
    command = {"command": ["python3", "-c", _WAIT], "args": [], "resources": resources}
    pod = store_pod(plan, own, command, reads_data=True)
    pod["spec"]["activeDeadlineSeconds"] = TOOL_MAX_S
    labels = pod["metadata"]["labels"]
    pod["metadata"]["labels"] = {key: value for key, value in labels.items() if not key.startswith(f"{env.GROUP}/")}
    return pod


def publisher_pod(plan: PodPlan, number: int, *, once: bool = False) -> Manifest:
    """The pod of a publisher. It has the size of a shard, which it may have to load, and what `publisher_size` adds.

    once: it publishes the last model, then ends.
    """
    stated, size = main_container(plan.spec.shards.template).get("resources"), publisher_size(plan.spec.model)
    resources = resources_of(plan, "shard", stated) or stated
    if isinstance(resources, Mapping):
        digests, disk = (-(-each >> _MIB_BITS) << _MIB_BITS for each in (size.digests_bytes, size.disk_bytes))
        resources = with_disk(with_more(resources, "memory", digests), disk)
    own = metadata(plan.job, publisher_name(plan.job, number))
    own |= {"labels": pod_labels(plan.job, env.ROLE_PUBLISHER, 0, number) | encryption_labels(plan)}
    container = {
        "args": [env.ROLE_PUBLISHER, *(["--once"] if once else [])],
        "resources": resources,
        "ports": [{"name": "http", "containerPort": env.DEFAULT_PORT_BASE + env.HTTP_PORT, "protocol": "TCP"}],
    }
    pod = store_pod(plan, own, container)
    (main,) = (each for each in pod["spec"]["containers"] if each["name"] == env.MAIN_CONTAINER)
    address = {"name": env.ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    main["env"] += [
        address,
        {"name": env.PORT_BASE, "value": str(env.DEFAULT_PORT_BASE)},
        {"name": env.SCRATCH_DIR, "value": env.SCRATCH_MOUNT},
    ]
    if plan.encrypted:  # without encryption it connects to no member, and needs no key
        key = key_files(plan)
        main["env"] += [{"name": name, "value": value} for name, value in key.variables.items()]
        main["volumeMounts"] += key.mounts
        pod["spec"]["volumes"] += key.volumes
        pod["metadata"]["annotations"] = pod["metadata"].get("annotations", {}) | key.annotations
    pod["spec"]["terminationGracePeriodSeconds"] = PUBLISHER_GRACE_S
    pod["spec"] = merge(pod["spec"], placed(plan, env.ROLE_PUBLISHER))
    return pod


def cleanup_pod(plan: PodPlan, attempt: int, spared: tuple[str, ...], record: str | None = None) -> Manifest:
    """The pod that deletes the job's saves, at this attempt. The objects of the anchors `spared` (keys) stay.

    With `snapshots.keepHistory` the job's history stays, and the pod stores the last `record` of it.
    """
    labels = pod_labels(plan.job, env.ROLE_CLEANUP, 0, attempt)
    own = metadata(plan.job, f"{plan.job.stem}-cleanup-{attempt}") | {"labels": labels}
    container = {
        "args": [
            env.ROLE_CLEANUP,
            *(argument for key in spared for argument in ("--spare", key)),
            *(["--keep-history"] if plan.spec.snapshots.keep_history else []),
        ],
        "resources": {"requests": CLEANUP_RESOURCES, "limits": CLEANUP_RESOURCES},
    }
    return store_pod(plan, own, container, record=record if plan.spec.snapshots.keep_history else None)


def recorder_pod(plan: PodPlan, number: int, record: str) -> Manifest:
    """The pod that stores the record of a job that has ended."""
    own = metadata(plan.job, recorder_name(plan.job, number))
    own |= {"labels": pod_labels(plan.job, env.ROLE_RECORDER, 0, number)}
    resources = {"requests": CLEANUP_RESOURCES, "limits": CLEANUP_RESOURCES}
    return store_pod(plan, own, {"args": [env.ROLE_RECORDER], "resources": resources}, record=record)
