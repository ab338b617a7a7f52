"""`spec` of a CPRJob: what a user asks for. The CRD, its documentation and its defaults are made from it.

`model` and `data` have modules of their own.

Each validator here has a counterpart in CEL, and both come from one `Rule` of `rules`. Validators
belong to fields, not to models, so that one validation names every invalid field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from cpr_contract.spec import DENSE_FEATURES, DenseSync, Device
from cpr_operator.api.budget import AccuracyBudget
from cpr_operator.api.data_spec import Columns, Data
from cpr_operator.api.model import (
    MAX_ANCHORS,
    MAX_DATA_SHARDS,
    MAX_PREFETCH,
    MAX_RESTARTS,
    MAX_SHARDS,
    MAX_SPARES,
    MAX_TRAINERS,
    MAX_WORKERS,
    SpecModel,
)
from cpr_operator.api.model_spec import ModelSpec
from cpr_operator.api.rules import budget as budget_rules
from cpr_operator.api.rules import inputs
from cpr_operator.api.rules import job as rules
from cpr_operator.api.templates import misshapen

GROUP = "cprjob.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "CPRJob"
PLURAL = "cprjobs"

ObjectName = Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
#: A PodTemplateSpec. `templates` checks the parts that are merged, and the API server the whole pod, by a dry run.
PodTemplate = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]


class Replay(SpecModel):
    """Trainers keep their pushes until a save holds them, and push them again to a replaced shard."""

    mode: Literal["Off", "Auto"] = "Off"
    """Off: a replaced shard goes back to its last save. Auto: trainers also push again what the shard has lost since
    then, so that nothing is lost or charged as long as the trainers live. Auto has no effect with onShardLoss Degrade,
    in a shadow mode of trainers.denseSync, or with a snapshots.strategy other than Full."""
    memory: Annotated[str, Field(max_length=16, pattern=r"^[1-9][0-9]{0,8}(Ki|Mi|Gi)$")] = "1Gi"
    """The maximum memory for kept pushes per trainer, on top of what its container needs otherwise. At three quarters
    of it, the next save is made early. When it is full, the oldest pushes are dropped."""


class Redundancy(SpecModel):
    """Shards keep parity for each other in memory, so that a lost one needs no save."""

    data_shards: Annotated[int, Field(ge=1, le=MAX_DATA_SHARDS)]
    """Number of shards with a common parity, which another shard keeps. Each shard takes one such part of its rows and
    of their optimizer state in memory more; add that to the memory of shards.template. With 1 the parity is a mirror.
    It must be lower than shards.replicas."""


class RecoveryPolicy(SpecModel):
    """How the job recovers from a lost shard."""

    mode: Literal["Auto", "Partial", "Full"] = "Auto"
    """Auto: whichever costs less time within the budget. Partial: only the lost shard goes back to its last save, as
    long as the budget allows. Full: any loss of samples rolls the whole job back to an anchor."""
    on_shard_loss: Literal["Pause", "Degrade"] = "Pause"
    """Pause: training waits until a lost shard is back. Degrade: training goes on without the shard. Its rows read as
    their initial values, and its missed updates count against the accuracy budget. Each time, training may use up to
    half of the remaining budget before it waits. Training always waits for a drained shard, which loses nothing."""
    replay: Replay = Replay()
    """Whether trainers push again the updates that a lost shard had received since its last save."""
    redundancy: Redundancy | None = None
    """Parity among shards. A lost shard is computed from its neighbours as it was up to a second before, and trainers
    push again what came later. Needs replay, and has no effect where replay has none. Default: none."""

    @field_validator("redundancy")
    @classmethod
    def _redundancy_needs_replay(cls, value: Redundancy | None, info: ValidationInfo) -> Redundancy | None:
        replay: Replay | None = info.data.get("replay")
        if replay is not None:
            budget_rules.REDUNDANCY_NEEDS_REPLAY.require(value is None or replay.mode == "Auto")
        return value


class Trainers(SpecModel):
    """The trainers. Each holds a copy of the dense network."""

    replicas: Annotated[int, Field(ge=1, le=MAX_TRAINERS)] = 1
    """Number of trainers. It may change while the job trains: all trainers stop after the same step, save, and continue
    with the new number, and nothing is lost. In a shadow mode of denseSync they wait for the slowest at that step."""
    dense_sync: DenseSync = "AllReduce"
    """How the copies of the dense network are synchronised. AllReduce: all trainers take each step together. ShadowMA,
    ShadowBMUF, ShadowEASGD: each trainer trains its part of every batch at its own pace, and a background thread
    averages the copies, so that no trainer waits for a slow or dead one. They need at least two trainers."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: the dense network computes in bfloat16, and vectors and gradients are sent in it. Parameters, rows and
    optimizers stay float32. About twice as fast on processors and GPUs with bfloat16 instructions, far slower on
    others."""
    prefetch: Annotated[int, Field(ge=1, le=MAX_PREFETCH)] = 1
    """Number of steps to prefetch embedding vectors. With 1, a single trainer reads the same vectors as without
    prefetching. Higher values hide more network latency, but vectors then miss the updates of the steps in between."""
    device: Device = "cpu"
    """The device of the dense network. cuda: a GPU. Request it in trainers.template, with nvidia.com/gpu in the
    resources of the container `main`, and use an image with a CUDA build of torch. Tables stay on the shards' CPUs."""
    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)] = 1
    """Number of threads of a trainer that compute parts of its slice in parallel, on one copy of the dense network,
    each on its share of the trainer's CPUs. Results are the same up to rounding. More than one pays off if the network
    is too small to keep all CPUs busy. With device cuda it must be 1."""
    template: PodTemplate = Field(default={})
    """A PodTemplateSpec for resources, node selectors, volumes and the like. The operator merges its own fields into
    the container `main`, and they take precedence."""

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
    template: PodTemplate = Field(default={})
    """A PodTemplateSpec for resources, node selectors, volumes and the like. The operator merges its own fields into
    the container `main`, and they take precedence."""

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
    """The key in the Secret."""


class Store(SpecModel):
    """An S3-compatible store, or a folder that all pods share."""

    endpoint: Annotated[str, Field(max_length=1024, pattern=r"^(https?://[^/?#]+/?|file:///.+)$")]
    """https://host[:port], http://host[:port] or file:///folder. The scheme says whether TLS is used."""
    region: Annotated[str, Field(max_length=64)] | None = None
    """The store's region, if it needs one."""
    bucket: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
    """The bucket, which must exist. For a folder endpoint: the first folder below it."""
    prefix: Annotated[str, Field(max_length=512, pattern=r"^[-._/a-zA-Z0-9]*$")] = ""
    """The prefix of all keys of this job. The job's uid follows it."""
    ca_bundle: SecretKey | None = None
    """The Secret with the CA bundle (PEM) to verify the store's certificate with."""
    credentials_secret: ObjectName | None = None
    """A Secret in the job's namespace with accessKey, secretKey and, if needed, sessionToken. Default: the pods'
    workload identity."""


class Interval(SpecModel):
    """The time between two cuts. A lost shard is restored from the last one."""

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
    """The precision of rows in saves. The flush of a drained shard and the finished model are always exact."""

    mode: Literal["Exact", "Auto", "Fixed"] = "Exact"
    """Exact: 32 bits per value, so a restored row equals the saved one. Auto: as few bits as the expected number of
    restores allows. Fixed: `bits`."""
    bits: Literal[8, 4, 3, 2] | None = None
    """Bits per value of a row, for mode Fixed."""

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
    """The earlier save that a shard's save of changed rows is based on. Consecutive: the last one. OneShot: the last
    full one. Intermittent: the last full one, until a new full save is expected to cost less."""
    strategy: Literal["Full", "MFU", "SSU", "SCAR", "Growth"] = "Full"
    """Which rows each shard also saves between cuts, so that they are fresher after a restore. Full: none. MFU: the
    most frequently updated. SSU: a sample of those in use. SCAR: the farthest from their last save. Growth: those whose
    RowWiseAdagrad accumulator grew most, by its square root."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.125
    """The portion of the rows of large tables that a priority save holds. Priority saves are 1 / fraction times as
    frequent as cuts. Small tables are saved whole."""
    quantisation: Quantisation = Quantisation()
    """The precision of rows in saves."""
    max_bytes_per_second: Annotated[int, Field(ge=1048576, le=2**53 - 1)] | None = None
    """Upper limit of the bytes that one shard sends to the store per second while it trains. Default: no limit. It is
    ignored when training is about to overtake a save, and for the saves at the end."""
    keep: Annotated[int, Field(ge=2, le=MAX_ANCHORS)] = 2
    """Number of anchors to keep restorable."""
    delete_with_job: bool = False
    """True: the job's saves are deleted with the job, except anchors that other jobs restore from (restoreFrom). False:
    they stay in the store."""
    dense_interval_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    """Seconds between two saves of the dense network, which is small."""
    restore_from: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Another job's anchor in the same store (its status.result.key) to start from. Model and optimizer are restored,
    the position in the data is not."""


class RestartLimit(SpecModel):
    """When incidents are too many. Disruptions and an unreachable store do not count.

    Members of one role that fail in the same way within seconds are one incident.
    """

    count: Annotated[int, Field(ge=0, le=MAX_RESTARTS)] = 10
    """Number of incidents within the window that are tolerated. One more fails the job."""
    window_seconds: Annotated[int, Field(ge=1, le=31536000)] = 3600
    """Length of the window, in seconds."""


class FailurePolicy(SpecModel):
    """What the user expects of failures, and when to give up."""

    expected_job_mtbf_seconds: Annotated[int, Field(ge=1, le=315360000)] = 43200
    """Expected time between two failures of any pods of the job. The first plan is based on it."""
    restart_limit: RestartLimit = RestartLimit()
    """When to give up."""
    startup_deadline_seconds: Annotated[int, Field(ge=1, le=604800)] = 900
    """Time limit for the first pods to be at work, from their creation. After it, all pods are removed and the job
    fails. A job that has trained before is suspended instead, and resumed later. It may change while the job is
    suspended."""
    silence_seconds: Annotated[int, Field(ge=1, le=3600)] = 10
    """How long a member may miss heartbeats before its peers report it as silent."""


class Evaluation(SpecModel):
    """Evaluation on held-out rows while the job trains: AUC, log loss, normalised entropy and calibration."""

    every_samples: Annotated[int, Field(ge=0, le=2**50)] = 0
    """After each so many trained samples, all trainers score the model on rows that data.holdOut keeps from training.
    0: not while the job trains."""
    samples: Annotated[int, Field(ge=1, le=2**26)] = 100_000
    """How many held-out rows to score, the first of them. Each trainer keeps its part of them in memory."""


class CPRJobSpec(SpecModel):
    """A training job that recovers embedding shards individually, within an accuracy budget."""

    image: Annotated[str, Field(min_length=1, max_length=512)]
    """The trainer image."""
    suspend: bool = False
    """True: save everything, remove the pods and wait. A job created suspended starts no pods."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=315360000)] | None = None
    """Seconds after which a finished job is deleted. Default: it is kept."""
    accuracy_budget: AccuracyBudget
    """How much accuracy failures may cost."""
    recovery: RecoveryPolicy = RecoveryPolicy()
    """How the job recovers from a lost shard."""
    model: ModelSpec
    """The model to train."""
    data: Data
    """The samples to train on."""
    trainers: Trainers = Trainers()
    """The trainers."""
    evaluation: Evaluation = Evaluation()
    """How well the model does on held-out rows, while the job trains."""
    shards: Shards = Shards()
    """The embedding shards."""
    snapshots: Snapshots
    """Where and how often the job is saved."""
    failure_policy: FailurePolicy = FailurePolicy()
    """What to expect of failures, and when to give up."""

    @field_validator("data")
    @classmethod
    def _columns_fit_the_model(cls, value: Data, info: ValidationInfo) -> Data:
        model: ModelSpec | None = info.data.get("model")
        if model is not None and value.columns is not None:
            _require_columns(value.columns, model)
        if model is not None:
            inputs.FEATURE_COLUMNS.require(model.features is None or value.columns is not None)
            inputs.NUMERIC_COLUMNS.require(model.numeric is None or value.columns is not None)
            pools = any(each.pooling for each in model.features or model.tables)
            has_separator = value.columns is not None and value.columns.separator is not None
            inputs.BAGS.require(not pools or value.format == "Parquet" or has_separator)
            inputs.POOLED.require(pools or not has_separator)
            hashed = all(table.ids == "CPR64" for table in model.tables)
            inputs.SYNTHETIC_IDS.require(value.format != "Synthetic" or hashed)
        return value

    @field_validator("evaluation")
    @classmethod
    def _evaluation_has_rows(cls, value: Evaluation, info: ValidationInfo) -> Evaluation:
        data: Data | None = info.data.get("data")
        trainers: Trainers | None = info.data.get("trainers")
        if data is not None:
            rules.EVALUATION_ROWS.require(value.every_samples == 0 or data.hold_out > 0)
        if trainers is not None:
            rules.EVALUATION_LOCKSTEP.require(value.every_samples == 0 or trainers.dense_sync == "AllReduce")
        return value

    @field_validator("recovery")
    @classmethod
    def _partial_needs_budget(cls, value: RecoveryPolicy, info: ValidationInfo) -> RecoveryPolicy:
        budget: AccuracyBudget | None = info.data.get("accuracy_budget")
        if budget is not None:
            budget_rules.PARTIAL_NEEDS_BUDGET.require(value.mode != "Partial" or budget.portion > 0)
        return value

    @field_validator("recovery")
    @classmethod
    def _degrade_needs_budget(cls, value: RecoveryPolicy, info: ValidationInfo) -> RecoveryPolicy:
        budget: AccuracyBudget | None = info.data.get("accuracy_budget")
        if budget is not None:
            loses = value.mode != "Full" and budget.portion > 0
            budget_rules.DEGRADE_NEEDS_BUDGET.require(value.on_shard_loss == "Pause" or loses)
        return value

    @field_validator("shards")
    @classmethod
    def _degrade_needs_shards(cls, value: Shards, info: ValidationInfo) -> Shards:
        recovery: RecoveryPolicy | None = info.data.get("recovery")
        if recovery is not None:
            budget_rules.DEGRADE_NEEDS_SHARDS.require(recovery.on_shard_loss == "Pause" or value.replicas > 1)
        return value

    @field_validator("shards")
    @classmethod
    def _more_shards_than_have_one_parity(cls, value: Shards, info: ValidationInfo) -> Shards:
        recovery: RecoveryPolicy | None = info.data.get("recovery")
        if recovery is not None and recovery.redundancy is not None:
            budget_rules.REDUNDANCY_SHARDS.require(recovery.redundancy.data_shards < value.replicas)
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


def _require_columns(columns: Columns, model: ModelSpec) -> None:
    """Raise pydantic's error unless the columns are those that the model takes."""
    wanted = len(model.tables) if model.features is None else 0
    inputs.CATEGORIES.require(len(columns.categories) == wanted)
    one_label = len(columns.labels) == 1 and not columns.targets
    inputs.ONE_LABEL.require(one_label or model.entrypoint is not None)
    numeric = len(columns.counts) + len(columns.numbers)
    inputs.NUMERIC.require(numeric <= DENSE_FEATURES if model.numeric is None else numeric == model.numeric)
    predicted = {*columns.labels, *columns.targets}
    read = {name for feature in model.features or () for name in (feature.column, feature.weights)}
    inputs.FEATURE_PREDICTED.require(predicted.isdisjoint(read))
