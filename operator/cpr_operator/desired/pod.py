"""The pod of one incarnation of one member, and the spare that may become one.

The main container's environment and files are those of `cpr_contract.env`. Everything that the operator relies on is
required and wins over the user's template; sizes and placement are defaults that the template may change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cpr_contract import env
from cpr_contract.choices import ReplayPolicy, SparseUpdates
from cpr_contract.codec import is_packed
from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.data_spec import Kafka
from cpr_operator.api.pod_placement import Placement
from cpr_operator.api.quantities import main_container, with_disk, with_more
from cpr_operator.api.sizes import shard_memory
from cpr_operator.api.snapshots_spec import Endpoint
from cpr_operator.api.templates import DEFAULT_MIB
from cpr_operator.desired.job_objects import Manifest
from cpr_operator.desired.names import JobId, Role, job_labels, key_secret_name, metadata, pod_labels, pod_name
from cpr_operator.desired.rosters import Document
from cpr_operator.desired.template import keeping_apart, keeping_off, merge

#: The user and group of the image.
NONROOT = 65532
#: Seconds for which a pod stays bound to a node that does not answer (Kubernetes' default is 300 s).
NODE_LOSS_S = 15
#: Least time for a flush at SIGTERM.
LEAST_GRACE_S = 30
#: Requests and limits of a container without resources in its template.
DEFAULT_RESOURCES = {"cpu": "1", "memory": f"{DEFAULT_MIB // 1024}Gi"}

#: The exit codes after which a kubelet restarts a shard's container: an abort, SIGKILL (as for memory), and a fault.
RESTARTED = (134, 137, 139)

_MIB_BITS = 20

#: Fields of every pod of a job: it runs once, restricted, and leaves a lost node soon.
CONFINED: Mapping[str, Any] = {
    "restartPolicy": "Never",
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": NONROOT,
        "runAsGroup": NONROOT,
        "fsGroup": NONROOT,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "tolerations": [
        {
            "key": f"node.kubernetes.io/{trouble}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": NODE_LOSS_S,
        }
        for trouble in ("not-ready", "unreachable")
    ],
}
#: Fields of the main container.
CONFINED_CONTAINER: Mapping[str, Any] = {
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    },
    "terminationMessagePath": env.TERMINATION_MOUNT,
    "terminationMessagePolicy": "File",
}


@dataclass(frozen=True, slots=True)
class PodPlan:
    """The inputs of a pod: `image`, `job_spec`, `replay` and `updates` are frozen at the job's start.

    `grace_s` grows with its saves, and `placements` are those of a queue that admitted the job. With `restart_rules`
    the container of a shard restarts in its pod, with the memory of the last one. `pod_group` is the PodGroup of
    trainers and shards; empty for none. `encrypted`: the pod serves TLS, and the key's Secret has the job's CA.
    `issued_ca`: the CA and its chain (PEM), if an issuer signed it.
    """

    job: JobId
    spec: CPRJobSpec
    image: str
    job_spec: str
    grace_s: int
    key_digest: str = ""
    placements: tuple[Placement, ...] = ()
    replay: ReplayPolicy = field(default_factory=ReplayPolicy)
    updates: SparseUpdates = "PerPush"
    restart_rules: bool = False
    pod_group: str = ""
    encrypted: bool = False
    issued_ca: str = ""


def role_spec(plan: PodPlan, role: Role) -> Manifest:
    """The common part of the specs of all pods of this role."""
    spec: Manifest = _pod(plan, role, role, metadata(plan.job, ""))["spec"]
    return spec


def pod_manifest(plan: PodPlan, roster: Document, avoid: str = "") -> Manifest:
    """The pod that reads `roster`, on any node but `avoid`."""
    name = pod_name(plan.job, roster.role, roster.index, roster.incarnation)
    own = metadata(plan.job, name) | {
        "labels": pod_labels(plan.job, roster.role, roster.index, roster.incarnation) | encryption_labels(plan),
        "annotations": roster.annotations | spec_files(plan.job_spec).annotations | key_files(plan).annotations,
    }
    pod = _pod(plan, roster.role, roster.role, own)
    spec = pod["spec"]
    if plan.pod_group:
        spec["schedulingGroup"] = {"podGroupName": plan.pod_group}
    if avoid:
        spec["affinity"] = keeping_off(spec.get("affinity") or {}, avoid)
    return pod


def spare_manifest(plan: PodPlan, name: str) -> Manifest:
    """A shard's pod that has no roster yet, away from the job's shards and other spares."""
    role = {"app.kubernetes.io/component": env.ROLE_SPARE, env.LABEL_ROLE: env.ROLE_SPARE}
    marks = {
        "labels": job_labels(plan.job) | role | encryption_labels(plan),
        "annotations": spec_files(plan.job_spec).annotations | key_files(plan).annotations,
    }
    pod = _pod(plan, "shard", env.ROLE_SPARE, metadata(plan.job, name) | marks)
    spec, others = pod["spec"], [env.ROLE_SHARD, env.ROLE_SPARE]
    selector = {
        "matchLabels": {env.LABEL_JOB: plan.job.name},
        "matchExpressions": [{"key": env.LABEL_ROLE, "operator": "In", "values": others}],
    }
    spec["affinity"] = keeping_apart(spec.get("affinity") or {}, selector)
    if plan.spec.shards.spare_priority_class_name is not None:
        spec["priorityClassName"] = plan.spec.shards.spare_priority_class_name
    return pod


def _pod(plan: PodPlan, role: Role, pod_set: str, required: Manifest) -> Manifest:
    """A pod of a role with the template's fields below what is required. `pod_set` is its name in the Workload."""
    template = plan.spec.shards.template if role == "shard" else plan.spec.trainers.template
    spec = dict(template.get("spec") or {})
    if not _is_restarted(plan, role):
        spec["containers"] = [_not_restarted(each) for each in spec.get("containers") or ()]
    if role == "shard":
        # A lost zone should take one shard of a stripe. Without parity zones protect nothing, and their traffic costs.
        keys = ("kubernetes.io/hostname", *([_ZONE] if plan.spec.recovery.redundancy else []))
        stated = {name: value for name, value in spec.items() if value is not None}
        spec = {"topologySpreadConstraints": [_spread(plan.job, key) for key in keys], **stated}
    files = _files(plan, role, required["name"])
    required_spec = {
        **CONFINED,
        "terminationGracePeriodSeconds": plan.grace_s,
        "containers": [_container(plan, role, main_container(template).get("resources"), files)],
        "volumes": files.volumes,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": merge(template.get("metadata") or {}, required),
        "spec": merge(merge(spec, required_spec), placed(plan, pod_set)),
    }


def _spread(job: JobId, key: str) -> Manifest:
    """Spread a job's shards evenly, as far as the scheduler can."""
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {env.LABEL_JOB: job.name, env.LABEL_ROLE: env.ROLE_SHARD}},
    }


def placed(plan: PodPlan, pod_set: str) -> Manifest:
    """The requirements of the queue's flavors for a pod set. They win over the template, and add tolerations."""
    placement = next((each for each in plan.placements if each.role == pod_set), None)
    if placement is None:
        return {}
    tolerations = [
        {name: value for name, value in each.to_dict().items() if value != ""} for each in placement.tolerations
    ]
    parts = {"nodeSelector": dict(placement.node_selector), "tolerations": tolerations}
    return {name: part for name, part in parts.items() if part}


def grace_s(expected_flush_s: float | None) -> int:
    """Time between SIGTERM and SIGKILL: twice the expected flush, and never less than Kubernetes' default."""
    return max(LEAST_GRACE_S, round(2 * (expected_flush_s or 0)))


def _container(plan: PodPlan, role: Role, stated_resources: object, files: PodFiles) -> Manifest:
    resources = resources_of(plan, role, stated_resources)
    address = {"name": env.ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return {
        "name": env.MAIN_CONTAINER,
        "image": plan.image,
        "args": [role],
        "env": [*({"name": name, "value": value} for name, value in files.variables.items()), address],
        "ports": [
            {"name": name, "containerPort": env.DEFAULT_PORT_BASE + offset, "protocol": "TCP"}
            for name, offset in (("data", env.DATA_PORT), ("http", env.HTTP_PORT), ("control", env.CONTROL_PORT))
        ],
        "volumeMounts": files.mounts,
        **(_RESTARTS if _is_restarted(plan, role) else {}),
        **CONFINED_CONTAINER,
        **(_PROBES if not plan.encrypted else _TLS_PROBES),
        **({"resources": resources} if resources else {}),
    }


_ZONE = "topology.kubernetes.io/zone"
_RESTARTS: Mapping[str, Any] = {
    "restartPolicy": "Never",
    "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [*RESTARTED]}}],
}


def _is_restarted(plan: PodPlan, role: Role) -> bool:
    """Return True if the container restarts in its pod. A trainer's memory is in no file that survives a restart."""
    stated = main_container(plan.spec.shards.template).get("restartPolicy")
    return plan.restart_rules and role == env.ROLE_SHARD and stated != "Never"


def _not_restarted(container: Mapping[str, Any]) -> Manifest:
    """A template's container, without restarts if it is the main one: the operator replaces the pod if that ends."""
    if container.get("name") != env.MAIN_CONTAINER or container.get("restartPolicy") == "Never":
        return dict(container)
    return {key: value for key, value in container.items() if key not in {"restartPolicy", "restartPolicyRules"}}


def resources_of(plan: PodPlan, role: Role, stated: object) -> Manifest:
    """The resources of a container with these `stated` in its template; empty: as stated.

    A trainer gets memory for the pushes that it buffers, so that a job that fits without replay is not killed for it,
    and disk for those that it spills. Without stated resources the operator chooses them: a shard gets the memory that
    its rows, held pushes and redundancy take.
    """
    if role == env.ROLE_SHARD:
        memory = shard_memory(plan.spec, plan.replay, plan.updates)
        more, spill = 0 if stated else max(memory.redundancy_bytes, memory.needed_bytes - (DEFAULT_MIB << _MIB_BITS)), 0
    else:
        more, spill = plan.replay.memory_bytes, plan.replay.spill_bytes
    own: Manifest = {"requests": DEFAULT_RESOURCES, "limits": DEFAULT_RESOURCES}
    resources = stated or own
    if not more or not isinstance(resources, Mapping):
        return {} if stated else own
    resources = with_more(resources, "memory", -(-more >> _MIB_BITS) << _MIB_BITS)
    return with_disk(resources, spill) if spill else resources


def _files(plan: PodPlan, role: Role, pod: str) -> PodFiles:
    """The variables, volumes and mounts of the pod of this name."""
    spec, stores = spec_files(plan.job_spec), store_files(plan.spec, reads_data=role == env.ROLE_TRAINER)
    restarts, key = _is_restarted(plan, role), key_files(plan)
    files = PodFiles(
        {
            **spec.variables,
            env.ROSTER_FILE: f"{env.ROSTER_DIR}/{env.ROSTER_NAME}",
            **key.variables,
            env.POD: pod,
            env.PORT_BASE: str(env.DEFAULT_PORT_BASE),
            env.SCRATCH_DIR: env.SCRATCH_MOUNT,
            env.KEEPER: "1",
            **({env.MEMORY_DIR: env.MEMORY_MOUNT} if restarts else {}),
            env.TERMINATION_FILE: env.TERMINATION_MOUNT,
            **stores.variables,
        }
    )
    roster = {"path": env.ROSTER_NAME, "fieldRef": {"fieldPath": f"metadata.annotations['{env.ANNOTATION_ROSTER}']"}}
    files.add({"name": "cprjob-roster", "downwardAPI": {"items": [roster]}}, env.ROSTER_DIR)
    files.volumes += key.volumes
    files.mounts += key.mounts
    files.add({"name": "cprjob-scratch", "emptyDir": {}}, env.SCRATCH_MOUNT, read_only=False)
    if restarts:
        # Without sizeLimit the volume may be as large as the pod's memory, and counts as such.
        files.add({"name": "cprjob-memory", "emptyDir": {"medium": "Memory"}}, env.MEMORY_MOUNT, read_only=False)
    history = history_files() if role == env.ROLE_TRAINER else PodFiles()
    files.variables |= history.variables
    files.volumes += [*history.volumes, *spec.volumes, *stores.volumes]
    files.mounts += [*history.mounts, *spec.mounts, *stores.mounts]
    return files


def _probe(path: str, period_s: int, failures: int, **scheme: str) -> Manifest:
    get = {"path": path, "port": env.DEFAULT_PORT_BASE + env.HTTP_PORT, **scheme}
    return {"httpGet": get, "periodSeconds": period_s, "timeoutSeconds": 5, "failureThreshold": failures}


def _probes(**scheme: str) -> Mapping[str, Any]:
    """The probes of a member, with the scheme of its HTTP port.

    Liveness is generous: a false kill costs a recovery, and peers name a hung member much sooner. Readiness is quick:
    the operator depends on it to see that a trainer waits for others.
    """
    return {
        "startupProbe": _probe("/healthz", 2, 150, **scheme),
        "livenessProbe": _probe("/healthz", 10, 6, **scheme),
        "readinessProbe": _probe("/readyz", 1, 2, **scheme),
    }


#: Kubelets do not verify certificates, and have none: these two pages need none.
_PROBES, _TLS_PROBES = _probes(), _probes(scheme="HTTPS")


def encryption_labels(plan: PodPlan) -> dict[str, str]:
    """The label of a pod that serves TLS, by which Prometheus chooses the scheme."""
    return {env.LABEL_ENCRYPTION: "TLS"} if plan.encrypted else {}


@dataclass(slots=True)
class PodFiles:
    """Environment variables by name, annotations, the pod's volumes, and the mounts of the main container."""

    variables: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    volumes: list[Manifest] = field(default_factory=list)
    mounts: list[Manifest] = field(default_factory=list)

    def add(self, volume: Manifest, mount: str, *, read_only: bool = True) -> None:
        """Mount a volume of files."""
        self.volumes.append(volume)
        self.mounts.append({"name": volume["name"], "mountPath": mount, **({"readOnly": True} if read_only else {})})


def key_files(plan: PodPlan) -> PodFiles:
    """The job's key, and the certificates of an encrypted job. An annotation has those that an issuer renews."""
    files = PodFiles({env.KEY_FILE: f"{env.KEY_DIR}/{env.KEY_NAME}"})
    if plan.key_digest:
        files.variables[env.KEY_DIGEST] = plan.key_digest
    if plan.encrypted:
        files.variables[env.ENCRYPTION] = "TLS"
    files.add({"name": "cprjob-key", "secret": {"secretName": key_secret_name(plan.job, plan.key_digest)}}, env.KEY_DIR)
    if plan.issued_ca:
        files.variables[env.ISSUED_CA_FILE] = f"{env.ISSUED_CA_DIR}/{env.ISSUED_CA_NAME}"
        files.annotations[env.ANNOTATION_ISSUED_CA] = plan.issued_ca
        field = {"fieldPath": f"metadata.annotations['{env.ANNOTATION_ISSUED_CA}']"}
        items = [{"path": env.ISSUED_CA_NAME, "fieldRef": field}]
        files.add({"name": "cprjob-issued-ca", "downwardAPI": {"items": items}}, env.ISSUED_CA_DIR)
    return files


def spec_files(job_spec: str) -> PodFiles:
    """The job's description: a variable, which an image of any release reads; if it is long a file with a variable.

    The file shows an annotation of the pod, as the roster's does: no further object has to be created and deleted.
    """
    if not is_packed(job_spec):
        return PodFiles({env.SPEC: job_spec})
    files = PodFiles({env.SPEC_FILE: f"{env.SPEC_DIR}/{env.SPEC_NAME}"}, {env.ANNOTATION_SPEC: job_spec})
    item = {"path": env.SPEC_NAME, "fieldRef": {"fieldPath": f"metadata.annotations['{env.ANNOTATION_SPEC}']"}}
    files.add({"name": "cprjob-spec", "downwardAPI": {"items": [item]}}, env.SPEC_DIR)
    return files


def history_files(record: str | None = None) -> PodFiles:
    """The job's record as a file, which shows an annotation of the pod. Without a record one may come later."""
    annotations = {} if record is None else {env.ANNOTATION_HISTORY: record}
    files = PodFiles({env.HISTORY_FILE: f"{env.HISTORY_DIR}/{env.HISTORY_NAME}"}, annotations)
    item = {"path": env.HISTORY_NAME, "fieldRef": {"fieldPath": f"metadata.annotations['{env.ANNOTATION_HISTORY}']"}}
    files.add({"name": "cprjob-history", "downwardAPI": {"items": [item]}}, env.HISTORY_DIR)
    return files


def store_files(spec: CPRJobSpec, *, reads_data: bool) -> PodFiles:
    """The access to the job's store, and for a pod that reads data to the store of the data, or to its brokers."""
    files, saves, data = PodFiles(), spec.snapshots.store, spec.data.store or spec.data.kafka
    _add(files, "cprjob", saves, (env.CREDENTIALS_DIR, env.CREDENTIALS_MOUNT), (env.CA_FILE, env.CA_MOUNT))
    if reads_data and data is not None:
        credentials = (env.DATA_CREDENTIALS_DIR, env.DATA_CREDENTIALS_MOUNT)
        _add(files, "cprjob-data", data, credentials, (env.DATA_CA_FILE, env.DATA_CA_MOUNT))
    return files


def _add(
    files: PodFiles, name: str, store: Endpoint | Kafka, credentials: tuple[str, str], ca: tuple[str, str]
) -> None:
    """Add the access to one store; `credentials` and `ca` have a variable and the path of its mount."""
    if store.credentials_secret:
        variable, mount = credentials
        files.variables[variable] = mount
        files.add({"name": f"{name}-credentials", "secret": {"secretName": store.credentials_secret}}, mount)
    if store.ca_bundle:
        (variable, mount), key = ca, store.ca_bundle.key
        files.variables[variable] = f"{mount}/{key}"
        secret = {"secretName": store.ca_bundle.name, "items": [{"key": key, "path": key}]}
        files.add({"name": f"{name}-ca", "secret": secret}, mount)
