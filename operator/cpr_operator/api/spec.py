"""`spec` of a CPRJob: what a user asks for. The CRD, its documentation and its defaults are made from it.

`model` and `data` are rooms of their own beside it.

A validator here has a twin in CEL; both are a `Rule` of `rules`. Validators sit on fields, not on models, so that one
reading of a bad document names every wrong field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from cpr_contract.spec import DenseSync, Device
from cpr_operator.api import rules
from cpr_operator.api.budget import AccuracyBudget
from cpr_operator.api.data_spec import Data
from cpr_operator.api.model import (
    MAX_ANCHORS,
    MAX_PREFETCH,
    MAX_RESTARTS,
    MAX_SHARDS,
    MAX_TRAINERS,
    MAX_WORKERS,
    SpecModel,
)
from cpr_operator.api.model_spec import ModelSpec
from cpr_operator.api.templates import misshapen

GROUP = "cprjob.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "CPRJob"
PLURAL = "cprjobs"

ObjectName = Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
#: A PodTemplateSpec: `templates` judges what is merged, and the pods' API server all of it, by a dry run.
PodTemplate = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]


class Replay(SpecModel):
    """Trainers keep what they pushed until a save holds it, and push it again to a shard that is replaced."""

    mode: Literal["Off", "Auto"] = "Off"
    """Off: a replaced shard goes back to its last save. Auto: it gets again what it lost since, so that nothing is lost
    and nothing charged, as long as the trainers live. Auto is off with onShardLoss Degrade, in a shadow mode of
    trainers.denseSync, and with another snapshots.strategy than Full."""
    memory: Annotated[str, Field(max_length=16, pattern=r"^[1-9][0-9]{0,8}(Ki|Mi|Gi)$")] = "1Gi"
    """The most that each trainer keeps, on top of what its container needs otherwise. At three quarters the next save
    comes early; when it is full, the oldest pushes go."""


class RecoveryPolicy(SpecModel):
    """How the job recovers from a lost shard."""

    mode: Literal["Auto", "Partial", "Full"] = "Auto"
    """Auto: whatever costs less time within the budget. Partial: the lost shard alone goes back to its last save,
    while the budget allows. Full: any loss of samples rolls the whole job back to an anchor."""
    on_shard_loss: Literal["Pause", "Degrade"] = "Pause"
    """Pause: training waits until a lost shard is back. Degrade: it goes on meanwhile; rows of that shard read as their
    first values, and what they would have learnt is lost and counts against the accuracy budget. Half of what the
    budget has left may go into it each time; then training waits. A drained shard is waited for: it loses nothing."""
    replay: Replay = Replay()
    """Whether trainers push again what a lost shard had learnt since its last save."""


class Trainers(SpecModel):
    """The trainers: the dense network is replicated on them."""

    replicas: Annotated[int, Field(ge=1, le=MAX_TRAINERS)] = 1
    """How many. That may change while the job trains: all stop after one step, are saved, and go on from there as so
    many; nothing is lost. In a shadow mode of denseSync they wait for the slowest there."""
    dense_sync: DenseSync = "AllReduce"
    """How the copies of the dense network are kept together. AllReduce: all trainers take each step together. ShadowMA,
    ShadowBMUF, ShadowEASGD: each trains its part of every batch at its own pace, and a background thread averages the
    copies, so that none waits for one that is slow or dead. They need two trainers."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: the dense network computes in bfloat16, and vectors and gradients travel so; parameters, rows and
    optimizers stay float32. About twice as fast on processors and GPUs that multiply it, far slower on others."""
    prefetch: Annotated[int, Field(ge=1, le=MAX_PREFETCH)] = 1
    """For how many steps ahead embedding vectors are asked for. With 1 a lone trainer reads what it would have read one
    step after the other. More hides a longer way to the shards; vectors then miss what so many steps before changed."""
    device: Device = "cpu"
    """Where the dense network is computed. cuda: on a GPU, which trainers.template has to ask for, with nvidia.com/gpu
    in the resources of its container `main`; the image needs a CUDA build of torch. Tables stay with the shards, on
    processors."""
    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)] = 1
    """Threads of a trainer that compute parts of its slice side by side, on one copy of the dense network, each on its
    share of the trainer's processors. Results are the same to rounding. More than one pays where the network is too
    small to keep all processors busy; with device cuda there is one."""
    template: PodTemplate = Field(default={})
    """A PodTemplateSpec; its container `main` is merged under what the operator requires. Resources, node selectors,
    volumes and the like go here."""

    @field_validator("workers")
    @classmethod
    def _one_on_a_gpu(cls, value: int, info: ValidationInfo) -> int:
        rules.WORKERS.require(value == 1 or info.data.get("device") != "cuda")
        return value

    @field_validator("template")
    @classmethod
    def _can_be_merged(cls, value: dict[str, Any]) -> dict[str, Any]:
        if (part := misshapen(value)) is not None:
            part.fail("spec.trainers.template")
        return value

    @field_validator("dense_sync")
    @classmethod
    def _shadow_needs_two(cls, value: DenseSync, info: ValidationInfo) -> DenseSync:
        rules.DENSE_SYNC.require(value == "AllReduce" or info.data.get("replicas", 2) > 1)
        return value


class Shards(SpecModel):
    """The shards: the embedding tables are spread over them."""

    replicas: Annotated[int, Field(ge=1, le=MAX_SHARDS)] = 2
    """How many."""
    template: PodTemplate = Field(default={})
    """A PodTemplateSpec; its container `main` is merged under what the operator requires. Resources, node selectors,
    volumes and the like go here."""

    @field_validator("template")
    @classmethod
    def _can_be_merged(cls, value: dict[str, Any]) -> dict[str, Any]:
        if (part := misshapen(value)) is not None:
            part.fail("spec.shards.template")
        return value


class SecretKey(SpecModel):
    """One key of a Secret in the job's namespace."""

    name: ObjectName
    """The Secret's name."""
    key: Annotated[str, Field(max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")] = "ca.crt"
    """The key in it."""


class Store(SpecModel):
    """An S3-compatible store, or a folder that all pods share."""

    endpoint: Annotated[str, Field(max_length=1024, pattern=r"^(https?://[^/?#]+/?|file:///.+)$")]
    """https://host[:port], http://host[:port] or file:///folder; the scheme decides about TLS."""
    region: Annotated[str, Field(max_length=64)] | None = None
    """The store's region, where it needs one."""
    bucket: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
    """The bucket, which must exist; of a folder the first folder below it."""
    prefix: Annotated[str, Field(max_length=512, pattern=r"^[-._/a-zA-Z0-9]*$")] = ""
    """What all keys of this job begin with; the job's uid follows."""
    ca_bundle: SecretKey | None = None
    """A CA bundle (PEM) that signed the store's certificate; a Secret, like all that pods mount from here."""
    credentials_secret: ObjectName | None = None
    """A Secret in the job's namespace with accessKey, secretKey and, if needed, sessionToken. Absent: the pods'
    workload identity."""


class Interval(SpecModel):
    """The time between two cuts, from which a lost shard comes back."""

    mode: Literal["Auto", "Fixed"] = "Auto"
    """Auto: computed from the budget, the failure rate and the measured costs. Fixed: `seconds`."""
    seconds: Annotated[int, Field(ge=1, le=604800)] | None = None
    """Training time between two cuts, for mode Fixed."""

    @field_validator("seconds")
    @classmethod
    def _fixed_needs_seconds(cls, value: int | None, info: ValidationInfo) -> int | None:
        if "mode" in info.data:
            rules.FIXED_INTERVAL.require((info.data["mode"] == "Fixed") == (value is not None))
        return value


class Quantisation(SpecModel):
    """Fewer bits for rows in saves; what a drained shard flushes and the finished model are exact."""

    mode: Literal["Exact", "Auto", "Fixed"] = "Exact"
    """Exact: 32 bits a value; a restored row is exactly the one that was saved. Auto: as few as the restores that are
    expected of a row allow. Fixed: `bits`."""
    bits: Literal[8, 4, 3, 2] | None = None
    """Bits of each value of a row, for mode Fixed."""

    @field_validator("bits")
    @classmethod
    def _fixed_needs_bits(cls, value: int | None, info: ValidationInfo) -> int | None:
        if "mode" in info.data:
            rules.FIXED_BITS.require((info.data["mode"] == "Fixed") == (value is not None))
        return value


class Snapshots(SpecModel):
    """Where and how often the job is saved."""

    store: Store
    """Where saves go."""
    interval: Interval = Interval()
    """How often all shards are saved."""
    rebase: Literal["Consecutive", "OneShot", "Intermittent"] = "Intermittent"
    """On which earlier save a shard's save of changed rows stands. Consecutive: the last. OneShot: the last full one.
    Intermittent: the last full one, until another is expected to pay."""
    strategy: Literal["Full", "MFU", "SSU", "SCAR", "Growth"] = "Full"
    """Which rows each shard saves between cuts too, so that a restored shard has them fresh. Full: none. MFU: the most
    updated ones; SSU: a sample of those in use; SCAR: the farthest from their last save; Growth: those whose
    accumulator of RowWiseAdagrad grew most, by its square root."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.125
    """The portion of the rows of large tables that such a save holds; it is made so many times as often as a cut. Small
    tables are saved whole."""
    quantisation: Quantisation = Quantisation()
    """How many bits saves store of each value of a row."""
    max_bytes_per_second: Annotated[int, Field(ge=1048576, le=2**53 - 1)] | None = None
    """The most that one shard sends to the store in a second while it trains; absent: no limit. It does not hold for a
    save that training is about to outrun, nor for what is saved at the end."""
    keep: Annotated[int, Field(ge=2, le=MAX_ANCHORS)] = 2
    """How many anchors stay restorable."""
    delete_with_job: bool = False
    """True: when the job is deleted, its saves are deleted too, but for anchors that other jobs restore from
    (restoreFrom). False: they stay in the store."""
    dense_interval_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    """Time between two saves of the dense network, which is small."""
    restore_from: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Another job's anchor (its status.result.key) to start from, in the same store: model and optimizer, not its place
    in the data."""


class RestartLimit(SpecModel):
    """How many incidents are too many; disruptions do not count, nor does a store that cannot be reached.

    Members of one role that fail alike within seconds are one incident.
    """

    count: Annotated[int, Field(ge=0, le=MAX_RESTARTS)] = 10
    """Incidents within the window that are still recovered from."""
    window_seconds: Annotated[int, Field(ge=1, le=31536000)] = 3600
    """Length of the window."""


class FailurePolicy(SpecModel):
    """What the user knows about failures, and when to give up."""

    expected_job_mtbf_seconds: Annotated[int, Field(ge=1, le=315360000)] = 43200
    """Expected time between two failures of any pod of the job; the plan starts from it."""
    restart_limit: RestartLimit = RestartLimit()
    """When to give up."""
    startup_deadline_seconds: Annotated[int, Field(ge=1, le=604800)] = 900
    """How long the first pods may take to work, from their creation; then all are removed and the job fails. A job that
    has trained is suspended instead, and resumes again later. Can be changed while the job is suspended."""
    silence_seconds: Annotated[int, Field(ge=1, le=3600)] = 10
    """How long a member may owe its peers a heartbeat before they call it silent."""


class CPRJobSpec(SpecModel):
    """A training job whose embedding shards recover one by one, within an accuracy budget."""

    image: Annotated[str, Field(min_length=1, max_length=512)]
    """The trainer image."""
    suspend: bool = False
    """True: save everything, remove the pods and wait. A job created suspended starts no pods."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=315360000)] | None = None
    """Delete the job so long after it finished; absent: keep it."""
    accuracy_budget: AccuracyBudget
    """The most accuracy that failures may cost."""
    recovery: RecoveryPolicy = RecoveryPolicy()
    """How the job recovers from a lost shard."""
    model: ModelSpec
    """The model to train."""
    data: Data
    """The samples to train."""
    trainers: Trainers = Trainers()
    """The trainers."""
    shards: Shards = Shards()
    """The embedding shards."""
    snapshots: Snapshots
    """Where and how often the job is saved."""
    failure_policy: FailurePolicy = FailurePolicy()
    """What is known about failures, and when to give up."""

    @field_validator("data")
    @classmethod
    def _a_category_for_each_table(cls, value: Data, info: ValidationInfo) -> Data:
        model: ModelSpec | None = info.data.get("model")
        if model is not None and value.columns is not None:
            rules.CATEGORIES.require(len(value.columns.categories) == len(model.tables))
            one_label = len(value.columns.labels) == 1 and not value.columns.targets
            rules.ONE_LABEL.require(one_label or model.entrypoint is not None)
        if model is not None:
            pools = any(table.pooling for table in model.tables)
            has_separator = value.columns is not None and value.columns.separator is not None
            rules.BAGS.require(not pools or value.format == "Parquet" or has_separator)
            rules.POOLED.require(pools or not has_separator)
        return value

    @field_validator("recovery")
    @classmethod
    def _partial_needs_budget(cls, value: RecoveryPolicy, info: ValidationInfo) -> RecoveryPolicy:
        budget: AccuracyBudget | None = info.data.get("accuracy_budget")
        if budget is not None:
            rules.PARTIAL_NEEDS_BUDGET.require(value.mode != "Partial" or budget.portion > 0)
        return value

    @field_validator("recovery")
    @classmethod
    def _degrade_needs_budget(cls, value: RecoveryPolicy, info: ValidationInfo) -> RecoveryPolicy:
        budget: AccuracyBudget | None = info.data.get("accuracy_budget")
        if budget is not None:
            loses = value.mode != "Full" and budget.portion > 0
            rules.DEGRADE_NEEDS_BUDGET.require(value.on_shard_loss == "Pause" or loses)
        return value

    @field_validator("shards")
    @classmethod
    def _degrade_needs_shards(cls, value: Shards, info: ValidationInfo) -> Shards:
        recovery: RecoveryPolicy | None = info.data.get("recovery")
        if recovery is not None:
            rules.DEGRADE_NEEDS_SHARDS.require(recovery.on_shard_loss == "Pause" or value.replicas > 1)
        return value

    @field_validator("snapshots")
    @classmethod
    def _growth_needs_accumulators(cls, value: Snapshots, info: ValidationInfo) -> Snapshots:
        model: ModelSpec | None = info.data.get("model")
        if model is not None:
            kinds = {(table.optimizer or model.sparse_optimizer).kind for table in model.tables}
            rules.GROWTH.require(value.strategy != "Growth" or kinds == {"RowWiseAdagrad"})
        return value

    @field_validator("snapshots")
    @classmethod
    def _priority_needs_lockstep(cls, value: Snapshots, info: ValidationInfo) -> Snapshots:
        trainers: Trainers | None = info.data.get("trainers")
        if trainers is not None:
            rules.PRIORITY_LOCKSTEP.require(value.strategy == "Full" or trainers.dense_sync == "AllReduce")
        return value

    @field_validator("shards")
    @classmethod
    def _a_row_for_each_shard(cls, value: Shards, info: ValidationInfo) -> Shards:
        model: ModelSpec | None = info.data.get("model")
        if model is not None:
            rules.ROWS.require(sum(table.rows for table in model.tables) >= value.replicas)
        return value
