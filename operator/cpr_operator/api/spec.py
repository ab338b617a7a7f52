"""`spec` of a CPRJob: what a user asks for. The CRD, its documentation and its defaults are made from it and `budget`.

A validator here has a twin in CEL; both are a `Rule` of `rules`. Validators sit on fields, not on models, so that one
reading of a bad document names every wrong field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from cpr_contract.spec import CATEGORICAL_FEATURES, DENSE_FEATURES, MAX_PREDICTED, DataFormat, DenseSync, Pooling
from cpr_operator.api import rules
from cpr_operator.api.budget import AccuracyBudget
from cpr_operator.api.model import MAX_ANCHORS, MAX_PREFETCH, MAX_RESTARTS, MAX_SHARDS, MAX_TRAINERS, SpecModel
from cpr_operator.api.optimizers import DenseOptimizer, SparseOptimizer, TableOptimizer

GROUP = "cprjob.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "CPRJob"
PLURAL = "cprjobs"

#: package.module:factory, in names that Python has.
ENTRYPOINT = r"^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"
#: In the place of a field that is wrong itself, and was told so.
_UNKNOWN = object()
Width = Annotated[int, Field(ge=1, le=65536)]
#: Data whose columns are mapped.
TEXT_FORMATS = frozenset({"CSV", "TSV"})
TABLE_FORMATS = TEXT_FORMATS | {"Parquet"}
Layers = Annotated[tuple[Width, ...], Field(min_length=1, max_length=16)]
ObjectName = Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
#: A PodTemplateSpec: the API server of the pods judges it, by a dry run.
PodTemplate = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]


class RecoveryPolicy(SpecModel):
    """How the job recovers from a lost shard."""

    mode: Literal["Auto", "Partial", "Full"] = "Auto"
    """Auto: whatever costs less time within the budget. Partial: the lost shard alone goes back to its last save,
    while the budget allows. Full: any loss of samples rolls the whole job back to an anchor."""
    on_shard_loss: Literal["Pause", "Degrade"] = "Pause"
    """Pause: training waits until a lost shard is back. Degrade: it goes on meanwhile; rows of that shard read as their
    first values, and what they would have learnt is lost and counts against the accuracy budget. Half of what the
    budget has left may go into it each time; then training waits. A drained shard is waited for: it loses nothing."""


class Table(SpecModel):
    """One embedding table; the t-th table takes the t-th categorical column."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9_]*[a-z0-9])?$")]
    """A name that no other table of the job has."""
    rows: Annotated[int, Field(ge=1, le=2**40)]
    """Rows; ids are hashed into them."""
    pooling: Pooling | None = None
    """For a column with a bag of any number of ids a sample: the table gives the Sum or the Mean of their vectors, and
    zeros for an empty bag. Absent: a sample has one id."""
    optimizer: TableOptimizer | None = None
    """The optimizer of this table; nothing of it is taken from sparseOptimizer. Absent: sparseOptimizer."""


class ModelSpec(SpecModel):
    """Embedding tables, and a dense network over them: a DLRM, or one of your own.

    A DLRM has 13 numeric features through a bottom MLP, embeddings, dot interaction, and a top MLP.
    """

    embedding_dim: Annotated[int, Field(ge=1, le=4096)]
    """Width of every embedding vector."""
    entrypoint: Annotated[str, Field(max_length=256, pattern=ENTRYPOINT)] | None = None
    """package.module:factory in the image: builds the dense network, a torch.nn.Module from numeric features and
    embeddings to logits. Absent: a DLRM."""
    bottom_mlp: Layers | None = None
    """Layer widths of the bottom MLP after its input; the last is embeddingDim. A DLRM needs it; an entrypoint may read
    it."""
    top_mlp: Layers | None = None
    """Layer widths of the top MLP after the interaction; the last is 1. A DLRM needs it; an entrypoint may read it."""
    tables: Annotated[
        tuple[Table, ...],
        Field(
            min_length=1,
            max_length=26,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ]
    """The embedding tables, in the order of the data's categorical columns."""
    dense_optimizer: DenseOptimizer = DenseOptimizer()
    """The optimizer of both MLPs."""
    sparse_optimizer: SparseOptimizer = SparseOptimizer()
    """The optimizer of the embedding tables that state none of their own."""

    @field_validator("bottom_mlp")
    @classmethod
    def _bottom_ends_in_dim(cls, value: tuple[int, ...] | None, info: ValidationInfo) -> tuple[int, ...] | None:
        fits = value is not None and value[-1] == info.data.get("embedding_dim", value[-1])
        rules.BOTTOM_MLP.require(fits or info.data.get("entrypoint", _UNKNOWN) is not None)
        return value

    @field_validator("top_mlp")
    @classmethod
    def _top_ends_in_one(cls, value: tuple[int, ...] | None, info: ValidationInfo) -> tuple[int, ...] | None:
        fits = value is not None and value[-1] == 1
        rules.TOP_MLP.require(fits or info.data.get("entrypoint", _UNKNOWN) is not None)
        return value

    @field_validator("tables")
    @classmethod
    def _names_differ(cls, value: tuple[Table, ...]) -> tuple[Table, ...]:
        rules.TABLES.require(len({table.name for table in value}) == len(value))
        return value


ColumnName = Annotated[str, Field(min_length=1, max_length=128)]


class Columns(SpecModel):
    """The columns that feed the model, by name; by number from 1 in files without a header line."""

    labels: Annotated[tuple[ColumnName, ...], Field(max_length=MAX_PREDICTED)] = ()
    """What is predicted: 0 or 1. Status shows the first one's scores."""
    targets: Annotated[tuple[ColumnName, ...], Field(max_length=MAX_PREDICTED)] = ()
    """Finite numbers that are predicted too; they need a network with a loss of its own."""
    counts: Annotated[tuple[ColumnName, ...], Field(max_length=DENSE_FEATURES)] = ()
    """Numeric features that enter as log(1 + max(x, 0)); where they are missing, as 0."""
    numbers: Annotated[tuple[ColumnName, ...], Field(max_length=DENSE_FEATURES)] = ()
    """Numeric features that enter as they are; where they are missing, as 0."""
    categories: Annotated[tuple[ColumnName, ...], Field(min_length=1, max_length=CATEGORICAL_FEATURES)]
    """Texts or integers, hashed to rows: the t-th feeds the t-th table. Where that pools, lists of them."""
    separator: Annotated[str, Field(max_length=1, pattern=r'^[^"\r\n]$')] | None = None
    """What stands between the ids of a bag in CSV and TSV; Parquet has lists."""

    @field_validator("targets")
    @classmethod
    def _predicted_differ(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if "labels" in info.data:
            predicted = (*info.data["labels"], *value)
            rules.PREDICTED.require(1 <= len(predicted) <= MAX_PREDICTED)
            rules.PREDICTED_ONCE.require(len(set(predicted)) == len(predicted))
        return value

    @field_validator("numbers")
    @classmethod
    def _as_many_as_the_model_takes(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        rules.FEATURES.require(len(info.data.get("counts", ())) + len(value) <= DENSE_FEATURES)
        return value

    @field_validator("counts", "numbers", "categories")
    @classmethod
    def _label_is_no_feature(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        predicted = {*info.data.get("labels", ()), *info.data.get("targets", ())}
        rules.LABEL[str(info.field_name)].require(predicted.isdisjoint(value))
        return value


class Data(SpecModel):
    """The samples to train, and in what portions."""

    format: DataFormat
    """Criteo: the layout of the Criteo click logs, a TSV without header. CSV, TSV, Parquet: tables, mapped by
    `columns`. Text may be plain, gzip or zstd. Synthetic: made by the trainers, with a signal that can be learned;
    needs no data."""
    uri: Annotated[str, Field(max_length=1024, pattern=r"^(s3://[^/]+/.+|file:///.+|/.+)$")] | None = None
    """Where the data lies: s3://bucket/key (read with the snapshot store's endpoint and credentials), file:///path or a
    path mounted in the trainers. A / at the end names all files below; `*`, `?` and `[...]` are wildcards."""
    columns: Columns | None = None
    """Which columns of a CSV, TSV or Parquet table feed the model."""
    header: bool = True
    """Whether each CSV or TSV file begins with a line of names."""
    epochs: Annotated[int, Field(ge=1, le=1000)] | None = None
    """How often the whole data is trained."""
    samples: Annotated[int, Field(ge=1, le=2**50)] | None = None
    """How many samples are trained; data in files is repeated or cut to this length."""
    batch_size: Annotated[int, Field(ge=1, le=2**20)] = 2048
    """Samples of one step, over all trainers."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of the order of samples and of the model's first values."""
    max_bad_lines: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Rows that one trainer may skip because they cannot be read as the format says; one more fails the job."""
    shuffle_rows: Annotated[int, Field(ge=1024, le=2**26)] = 2**19
    """Where there are more rows, they are shuffled in windows of so many; a trainer holds up to two in memory."""
    hold_out: Annotated[float, Field(ge=0, le=0.5)] = 0
    """The portion of the rows, the last ones, that is never trained: `cprjob evaluate` scores it."""

    @field_validator("uri")
    @classmethod
    def _uri_as_format_says(cls, value: str | None, info: ValidationInfo) -> str | None:
        rules.FILES_URI.require(info.data.get("format", "Synthetic") == "Synthetic" or value is not None)
        rules.SYNTHETIC_URI.require(info.data.get("format") != "Synthetic" or value is None)
        return value

    @field_validator("columns")
    @classmethod
    def _columns_as_format_says(cls, value: Columns | None, info: ValidationInfo) -> Columns | None:
        if "format" in info.data:
            rules.COLUMNS.require((info.data["format"] in TABLE_FORMATS) == (value is not None))
            has_separator = value is not None and value.separator is not None
            rules.SEPARATOR.require(not has_separator or info.data["format"] in TEXT_FORMATS)
        return value

    @field_validator("header")
    @classmethod
    def _header_of_text(cls, value: bool, info: ValidationInfo) -> bool:  # noqa: FBT001 -- pydantic calls it
        rules.HEADER.require(value or info.data.get("format") in TEXT_FORMATS)
        return value

    @field_validator("samples")
    @classmethod
    def _epochs_or_samples(cls, value: int | None, info: ValidationInfo) -> int | None:
        if "epochs" in info.data:
            epochs = info.data["epochs"]
            rules.SYNTHETIC.require(info.data.get("format") != "Synthetic" or epochs is None)
            rules.EPOCHS_OR_SAMPLES.require((epochs is None) != (value is None))
        return value


class Trainers(SpecModel):
    """The trainers: the dense network is replicated on them."""

    replicas: Annotated[int, Field(ge=1, le=MAX_TRAINERS)] = 1
    """How many. With denseSync AllReduce that may change while the job trains: all stop after one step, are saved, and
    go on from there as so many; nothing is lost."""
    dense_sync: DenseSync = "AllReduce"
    """How the copies of the dense network are kept together. AllReduce: all trainers take each step together. ShadowMA,
    ShadowBMUF, ShadowEASGD: each trains its part of every batch at its own pace, and a background thread averages the
    copies, so that none waits for one that is slow or dead. They need two trainers."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: the dense network computes in bfloat16, and vectors and gradients travel so; parameters, rows and
    optimizers stay float32. About twice as fast on processors and GPUs that multiply it."""
    prefetch: Annotated[int, Field(ge=1, le=MAX_PREFETCH)] = 1
    """For how many steps ahead embedding vectors are asked for. With 1 a lone trainer reads what it would have read one
    step after the other. More hides a longer way to the shards; vectors then miss what so many steps before changed."""
    template: PodTemplate = Field(default={})
    """A PodTemplateSpec; its container `main` is merged under what the operator requires. Resources, node selectors,
    volumes and the like go here."""

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
    """How many failures are too many; disruptions do not count."""

    count: Annotated[int, Field(ge=0, le=MAX_RESTARTS)] = 10
    """Failures within the window that are still recovered from."""
    window_seconds: Annotated[int, Field(ge=1, le=31536000)] = 3600
    """Length of the window."""


class FailurePolicy(SpecModel):
    """What the user knows about failures, and when to give up."""

    expected_job_mtbf_seconds: Annotated[int, Field(ge=1, le=315360000)] = 43200
    """Expected time between two failures of any pod of the job; the plan starts from it."""
    restart_limit: RestartLimit = RestartLimit()
    """When to give up."""
    startup_deadline_seconds: Annotated[int, Field(ge=1, le=604800)] = 900
    """How long the first pods may take to run; then all are removed and the job fails."""
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

    @field_validator("trainers")
    @classmethod
    def _degrade_needs_lockstep(cls, value: Trainers, info: ValidationInfo) -> Trainers:
        recovery: RecoveryPolicy | None = info.data.get("recovery")
        if recovery is not None:
            rules.DEGRADE_LOCKSTEP.require(recovery.on_shard_loss == "Pause" or value.dense_sync == "AllReduce")
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
