"""`spec` of a CPRJob. The CRD, its documentation and its defaults are generated from it; `rules` are between fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from cpr_contract.choices import DenseSync, Device, Encryption, Precision, SparseUpdates
from cpr_contract.limits import MAX_SHARDS, MAX_SPARES, MAX_TRAINERS, MAX_WORKERS
from cpr_operator.api.base import MAX_DATA_SHARDS, MAX_PREFETCH, MAX_RESTARTS, ObjectName, SpecModel
from cpr_operator.api.data_spec import Data, Evaluation
from cpr_operator.api.model_spec import ModelSpec
from cpr_operator.api.publish_spec import Publish
from cpr_operator.api.restore_spec import RestoreFrom
from cpr_operator.api.rules.rule import fail
from cpr_operator.api.snapshots_spec import AccuracyBudget, Snapshots
from cpr_operator.api.templates import misshapen

GROUP = "cprjob.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "CPRJob"
PLURAL = "cprjobs"

#: A PodTemplateSpec. `templates` checks the parts that are merged, and a dry run at the API server the whole pod.
PodTemplate = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]


def _mergeable(field: str) -> AfterValidator:
    """Return a validator of the pod template in `field`."""

    def check(template: dict[str, Any]) -> dict[str, Any]:
        if (part := misshapen(template)) is not None:
            fail(f"{field}.{part.field}", part.message, part.remedy)
        return template

    return AfterValidator(check)


def _check_workers(value: object) -> object:
    if value != "Auto" and (type(value) is not int or not 1 <= value <= MAX_WORKERS):
        message = f"{value!r} is neither Auto nor a number from 1 to {MAX_WORKERS}"
        fail("spec.trainers.workers", message, "state one of them, or remove it: the default is Auto")
    return value


#: The API server's IntOrString, within bounds.
Workers = Annotated[
    int | Literal["Auto"],
    BeforeValidator(_check_workers),
    WithJsonSchema(
        {"x-kubernetes-int-or-string": True, "minimum": 1, "maximum": MAX_WORKERS, "maxLength": 4, "pattern": "^Auto$"}
    ),
]


class ReplaySpec(SpecModel):
    """Trainers keep their pushes until a save holds them, and push them again to a replaced shard."""

    mode: Literal["Auto", "Required", "Off"] = "Auto"
    """Auto: trainers push again what a replaced shard has lost since its last save, so that nothing is lost or charged
    while the trainers live. With onShardLoss Degrade, in a shadow mode of trainers.denseSync, or with a
    snapshots.strategy other than Full that is impossible, and Auto is like Off; see status.runtime.replay.
    Required: like Auto, and a job in which it is impossible is refused. Off (in quotes in YAML, where it is a boolean
    otherwise): a replaced shard goes back to its last save. A job keeps the mode that it starts with, also if
    a later release has another default."""
    memory: Annotated[str, Field(max_length=16, pattern=r"^[1-9][0-9]{0,8}(Ki|Mi|Gi)$")] | None = None
    """The maximum memory for kept pushes per trainer. The operator adds it to what the container `main` of
    trainers.template requests and is limited to. Default: an eighth of that limit (or else request, or else 2Gi), at
    least 16Mi and at most 1Gi. At three quarters of it, the next save is made early. When it is full, the oldest pushes
    are dropped."""
    spill: Annotated[str, Field(max_length=16, pattern=r"^[1-9][0-9]{0,8}(Ki|Mi|Gi)$")] | None = None
    """The maximum space on the disk of each trainer's node for pushes that do not fit into memory. It counts like
    memory: at three quarters of both together the next save is made early. All of it is allocated when a trainer
    starts; if the disk has too little space, the condition SpillUnavailable is True, and only the memory is used. The
    operator requests it as ephemeral-storage of the container `main`. Default: none."""


class Redundancy(SpecModel):
    """Shards keep parity for each other in memory, so that a lost one needs no save."""

    data_shards: Annotated[int, Field(ge=1, le=MAX_DATA_SHARDS)]
    """Number of shards with a common parity, which another shard keeps. Each shard needs more memory, for this part
    of its rows and of their optimizer state; add it to the memory of shards.template. With 1 the parity is a mirror.
    It must be lower than shards.replicas."""


class RecoveryPolicy(SpecModel):
    """Recovery from a lost shard."""

    mode: Literal["Auto", "Partial", "Full"] = "Auto"
    """Auto: whichever costs less time within the budget. Partial: only the lost shard goes back to its last save,
    while the budget allows it. Full: any loss of samples rolls the whole job back to an anchor."""
    on_shard_loss: Literal["Pause", "Degrade"] = "Pause"
    """Pause: training waits until a lost shard is back. Degrade: training continues without the shard. Its rows read as
    their initial values, and its missed updates count against the accuracy budget. Each time, training may use up to
    half of the remaining budget before it waits. Training always waits for a drained shard, which loses nothing."""
    replay: ReplaySpec = ReplaySpec()
    """Replay: trainers push again the updates that a lost shard had received since its last save."""
    redundancy: Redundancy | None = None
    """Parity among shards. A lost shard is computed from its neighbours as it was up to a second before, and trainers
    push again what came later. Needs replay, and has no effect where replay has none. Default: none."""
    deadline_seconds: Annotated[int, Field(ge=1, le=604800)] | None = None
    """The maximum time that training waits for pods of replacements that do not start, such as for lack of a node. It
    may change while the job trains. Default: no limit; all other pods keep their nodes meanwhile."""
    on_deadline: Literal["Suspend", "Fail"] = "Suspend"
    """After deadlineSeconds: Suspend saves, releases all nodes and resumes five minutes later; updates that a missing
    shard received after its last save count as lost. Fail ends the job; its saves stay. It may change while the
    job trains."""


class Trainers(SpecModel):
    """The trainers. Each holds a copy of the dense network."""

    replicas: Annotated[int, Field(ge=1, le=MAX_TRAINERS)] = 1
    """Number of trainers. It may change while the job trains: all trainers stop after the same step, save, and continue
    with the new number, and nothing is lost. In a shadow mode of denseSync they wait for the slowest at that step."""
    dense_sync: DenseSync = "AllReduce"
    """The synchronisation of copies of the dense network. AllReduce: all trainers take each step together. ShadowMA,
    ShadowBMUF, ShadowEASGD: each trainer trains its part of every batch at its own pace, and a background thread
    averages the copies, so that no trainer waits for a slow or dead one. They need at least two trainers."""
    sparse_updates: Literal["Auto", SparseUpdates] = "Auto"
    """How shards update embedding rows. PerStep: once in each step, by the sum of the gradients of all trainers. The
    number of trainers then does not change the learning, and learning rates are those of the global batch. It needs
    denseSync AllReduce and onShardLoss Pause. PerPush: once for each trainer's push, in the order in which pushes
    arrive. Auto: PerStep wherever it is possible. A job keeps the mode that it starts with, with the reason in
    status.runtime.sparseUpdates. Jobs started by version 0.1.0 keep PerPush."""
    precision: Precision = "fp32"
    """bf16: the dense network computes in bfloat16, and vectors and gradients are sent in it. Parameters and
    optimizers stay float32, and rows have the precision of their table. About twice as fast on processors and GPUs with
    bfloat16 instructions, far slower on others."""
    prefetch: Annotated[int, Field(ge=1, le=MAX_PREFETCH)] = 1
    """Number of steps to prefetch embedding vectors. With 1, a single trainer reads the same vectors as without
    prefetching. Higher values hide more network latency, but vectors then miss the updates of the steps in between."""
    device: Device = "cpu"
    """The device of the dense network. cuda: a GPU. Request it in trainers.template, with nvidia.com/gpu in the
    resources of the container `main`, and use an image with a CUDA build of torch. Tables stay on the shards' CPUs."""
    workers: Workers | None = None
    """Number of threads of a trainer that compute parts of its slice in parallel, on one copy of the dense network,
    each on its share of the trainer's CPUs. Results are the same up to rounding. More than one pays off if the network
    is too small to keep all CPUs busy. Auto: before the first step, the first leader measures how many are fastest, and
    all trainers use it for the lifetime of the job (status.runtime.workers). State a number in jobs with results
    that are compared bit for bit. With device cuda it is 1. Default: Auto."""
    template: Annotated[PodTemplate, _mergeable("spec.trainers.template")] = Field(default={})
    """A PodTemplateSpec for resources, node selectors, volumes and the like. The operator merges its own fields into
    the container `main`, and they take precedence."""


class Shards(SpecModel):
    """The shards. Each holds a part of the embedding tables."""

    replicas: Annotated[int, Field(ge=1, le=MAX_SHARDS)] = 2
    """Number of shards. It may change while the job is suspended, except in a shadow mode of denseSync."""
    spares: Annotated[int, Field(ge=0, le=MAX_SPARES)] = 0
    """Number of pods kept waiting to take the place of a lost shard: started, connected to the store, and with the
    memory of the largest shard touched. Each requests what a shard does. It may change at any time."""
    spare_priority_class_name: ObjectName | None = None
    """The PriorityClass of spares, which should be lower than that of the shards, so that spares never take a node from
    members. A spare keeps it when it becomes a shard. Default: that of shards.template. New spares have it after a
    change."""
    template: Annotated[PodTemplate, _mergeable("spec.shards.template")] = Field(default={})
    """A PodTemplateSpec for resources, node selectors, volumes and the like. The operator merges its own fields into
    the container `main`, and they take precedence."""


class RestartLimit(SpecModel):
    """The limit of incidents. Disruptions and an unreachable store do not count.

    Members of one role that fail in the same way within seconds are one incident.
    """

    count: Annotated[int, Field(ge=0, le=MAX_RESTARTS)] = 10
    """Number of incidents within the window that are tolerated. One more fails the job."""
    window_seconds: Annotated[int, Field(ge=1, le=31536000)] = 3600
    """Length of the window, in seconds."""


class FailurePolicy(SpecModel):
    """Expected failures, and limits after which the job fails or is suspended."""

    expected_job_mtbf_seconds: Annotated[int, Field(ge=1, le=315360000)] = 43200
    """Expected time between two failures of any pods of the job. The first plan is based on it."""
    restart_limit: RestartLimit = RestartLimit()
    """The limit of incidents, after which the job fails."""
    startup_deadline_seconds: Annotated[int, Field(ge=1, le=604800)] = 900
    """Time limit for the first pods to become ready, from their creation. After it, all pods are removed and the job
    fails. A job that has trained before is suspended instead, and resumed later. It may change while the job is
    suspended."""
    silence_seconds: Annotated[int, Field(ge=1, le=3600)] = 10
    """Time without heartbeats after which peers report a member as silent."""


class Scheduling(SpecModel):
    """How the scheduler of the cluster places the pods."""

    gang: Literal["Auto", "Off"] = "Auto"
    """Auto: the scheduler places all trainers and shards at once, or none, where it can (Kubernetes 1.37 with the
    feature GenericWorkload). Off: one pod after the other. A change takes effect when the job resumes."""


class IssuerRef(SpecModel):
    """An issuer of cert-manager, or of a component that signs its CertificateRequests."""

    name: ObjectName
    """The name of the issuer. An Issuer is in the namespace of the job."""
    kind: Annotated[str, Field(max_length=63, pattern=r"^[A-Z][A-Za-z0-9]*$")] = "Issuer"
    """Issuer, ClusterIssuer, or a kind of another group."""
    group: Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")] = "cert-manager.io"
    """The API group of the kind."""


class Certificates(SpecModel):
    """The origin of the certificates of an encrypted job."""

    issuer_ref: IssuerRef
    """The issuer that signs the CA of the job by a CertificateRequest. It must be allowed to sign CAs. The job starts
    once it has signed, and the CA is renewed while the job trains. A change takes effect when the job resumes."""


class Security(SpecModel):
    """The security of the traffic of the job."""

    encryption: Encryption | None = None
    """TLS: all connections between the pods of the job, and those of the operator to them, are mutual TLS 1.3, with
    certificates of a CA that belongs to this job alone. None: members authenticate when they connect, and nothing is
    encrypted. A change takes effect when the job resumes. Default: that of the operator
    (CPR_OPERATOR_ENCRYPTION), which is None unless it is set."""
    certificates: Certificates | None = None
    """The issuer of the CA of the job, with encryption TLS. Default: that of the operator (CPR_OPERATOR_ISSUER), and
    without one the CA of the job signs itself."""


class CPRJobSpec(SpecModel):
    """A training job that recovers embedding shards individually, within an accuracy budget."""

    image: Annotated[str, Field(min_length=1, max_length=512)]
    """The trainer image."""
    suspend: bool = False
    """True: save everything, remove the pods and wait. A job created suspended starts no pods."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=315360000)] | None = None
    """Seconds after which a finished job is deleted. Default: it is kept."""
    managed_by: Literal["kueue.x-k8s.io/multikueue"] | None = None
    """The controller that runs the job. kueue.x-k8s.io/multikueue: Kueue creates the job in one of its worker clusters,
    and copies the status from there; this cluster has no pods of the job. It cannot change. Default: the operator."""
    accuracy_budget: AccuracyBudget
    """The accuracy that failures may cost."""
    recovery: RecoveryPolicy = RecoveryPolicy()
    """The policy for recoveries."""
    model: ModelSpec
    """The model to train."""
    data: Data
    """The samples to train on."""
    trainers: Trainers = Trainers()
    """The trainers."""
    evaluation: Evaluation = Evaluation()
    """Evaluation on held-out rows while the job trains."""
    shards: Shards = Shards()
    """The embedding shards."""
    snapshots: Snapshots
    """The store and the frequency of saves."""
    restore_from: RestoreFrom | None = None
    """Another job's model to start from, by the names of its tables and parameters. Default: initial values, or the
    anchor that snapshots.restoreFrom names."""
    publish: Publish | None = None
    """Models to publish while the job trains. Default: none; `cprjob export` writes the model of any anchor."""
    scheduling: Scheduling = Scheduling()
    """How the scheduler places the pods."""
    security: Security = Security()
    """The security of the traffic of the job."""
    failure_policy: FailurePolicy = FailurePolicy()
    """Expected failures, and limits after which the job fails or is suspended."""
