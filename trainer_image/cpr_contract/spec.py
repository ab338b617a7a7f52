"""`JobSpec`: the part of a CPRJob that its pods need, frozen when the job starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cpr_contract.choices import (
    Dense,
    DenseSync,
    Device,
    ExportFormat,
    Extra,
    Missing,
    Precision,
    Rebase,
    ReplayPolicy,
    SparseUpdates,
    Strategy,
)
from cpr_contract.model import ModelSpec

#: The version that the description of a job states at least if it has fields without which another model would be
#: trained. Images of releases without these fields refuse it, instead of ignoring them.
NEW_FIELDS_VERSION = 2


@dataclass(frozen=True, slots=True)
class LabelValuesSpec:
    """The texts in the column `label`: those that mean 1, and those that mean 0."""

    label: str
    positive: tuple[str, ...]
    negative: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ColumnsSpec:
    """The columns that feed the model: by name, or by number from 1 if a file has no names.

    `counts` become log(1 + max(x, 0)), `numbers` are used unchanged. The t-th of `categories` feeds the t-th table; it
    is empty if the model states features, which name their own columns. `separator` separates the ids of a bag
    in text. `labels` are 0 or 1, `targets` any numbers. Ids in columns of `integers` are whole numbers: 12, 12.0 and
    " 12" are one id. `weight` has the weight of each sample, 0 or more. Labels with `label_values` are texts.
    """

    labels: tuple[str, ...]
    counts: tuple[str, ...]
    numbers: tuple[str, ...]
    categories: tuple[str, ...]
    separator: str | None = None
    targets: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
    weight: str | None = None
    label_values: tuple[LabelValuesSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """An S3-compatible endpoint: `http[s]://host[:port]`."""

    endpoint: str
    region: str | None


@dataclass(frozen=True, slots=True)
class StoreSpec(EndpointSpec):
    """A place for saves: a prefix in a bucket of an endpoint, or in a folder (`file:///folder`)."""

    bucket: str
    prefix: str


@dataclass(frozen=True, slots=True)
class CsvSpec:
    """The syntax of cells in CSV and TSV; None is that of the format.

    An empty `quote` is none. After `escape` a character stands for itself, within quoted cells if there is a quote.
    Cells that are one of the texts `null_values` are absent. `boolean` has no texts, or that of true and that of false.
    """

    delimiter: str | None = None
    quote: str | None = None
    escape: str | None = None
    trim: bool = False
    null_values: tuple[str, ...] = ()
    boolean: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FollowSpec:
    """Data that comes after the start is trained, too. The leader looks for it every `every_s` seconds.

    The data ends after `until_s`, in seconds since the epoch; if the job is to finish when it is `idle`, also once all
    that was found is trained.
    """

    every_s: float
    until_s: float | None = None
    idle: Literal["Wait", "Finish"] = "Wait"

    @property
    def may_end(self) -> bool:
        """True if the data has an end: by time, or once the job is idle."""
        return self.until_s is not None or self.idle == "Finish"


DataFormat = Literal[
    "Criteo", "CSV", "TSV", "JSONLines", "Parquet", "Arrow", "ORC", "Delta", "Iceberg", "Kafka", "Synthetic", "Custom"
]
#: Formats of tables whose log lists the files: `DataSpec.uri` names one table.
TABLE_FORMATS: frozenset[DataFormat] = frozenset({"Delta", "Iceberg"})

#: The format of the values of messages: an object is a row, or a stream of Arrow IPC has the rows.
ValueFormat = Literal["JSON", "Arrow"]
#: The names of Kafka's clients.
SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@dataclass(frozen=True, slots=True)
class KafkaSpec:
    """The values of a topic's messages, and the connection to its brokers."""

    value_format: ValueFormat = "JSON"
    security_protocol: SecurityProtocol = "PLAINTEXT"
    sasl_mechanism: SaslMechanism | None = None


@dataclass(frozen=True, slots=True)
class DataSpec:
    """The source of samples. `batch_size` is global: it does not depend on the number of trainers.

    Exactly one of `epochs` and `samples` is set; `Synthetic` data needs `samples` and no `uri`. `Custom` data comes
    from `entrypoint`, "package.module:factory", which is called with `uri`. `columns` are those of tables and Custom;
    with `header` text files begin with their names, and `csv` is the syntax of CSV and TSV. Rows are shuffled in
    windows of `shuffle_rows`; with 0 they have the order of the data. The last portion `hold_out` of them is never
    trained. Objects are read at `store`, by default the endpoint of the job's store. A job that is to `follow` its
    data has no number of samples, and one epoch. `Kafka` data is followed; its `uri` has the brokers and the topic.
    `version` is that of a Delta table, or the snapshot of an Iceberg table; None is the newest when the job starts.
    """

    format: DataFormat
    uri: str | None
    epochs: int | None
    samples: int | None
    batch_size: int
    seed: int
    max_bad_lines: int
    columns: ColumnsSpec | None = None
    header: bool = True
    shuffle_rows: int = 2**19
    hold_out: float = 0.0
    entrypoint: str | None = None
    store: EndpointSpec | None = None
    csv: CsvSpec | None = None
    follow: FollowSpec | None = None
    kafka: KafkaSpec | None = None
    version: int | None = None


#: The treatment of a table with another number of rows than its source: an error, row r from row r mod the source's
#: rows, or row r from row r.
Resized = Literal["Fail", "Rehash", "Truncate"]


@dataclass(frozen=True, slots=True)
class TableSourceSpec:
    """Table `table` of a job starts from `source`, a table of the anchor. `resized` overrides that of all tables."""

    table: str
    source: str
    resized: Resized | None = None


@dataclass(frozen=True, slots=True)
class ByNameSpec:
    """The start from an anchor of other tables: each table takes the rows of the table of its name, or from `map`.

    `missing` is about tables, parameters and buffers of this job without a counterpart in the anchor, `extra` about
    those of the anchor without one in the job. Parameters and buffers are compared by name and shape. With `dense`
    Initialise the network has its first values.
    """

    missing: Missing = "Fail"
    extra: Extra = "Fail"
    resized: Resized = "Fail"
    map: tuple[TableSourceSpec, ...] = ()
    dense: Dense = "ByName"


@dataclass(frozen=True, slots=True)
class SnapshotSpec:
    """The store and the form of saves. `keep` anchors stay restorable; `restore_from` is another job's anchor key.

    Without `by_name`, that anchor is of the same tables and network.

    `rebase` selects the base of a shard's save: `Consecutive` the last save, `OneShot` the last full
    one, `Intermittent` the last full one until another is expected to pay. Between cuts each shard saves the portion
    `fraction` of the rows of large tables by `strategy`; `Full` saves none. `max_bytes_per_s` limits the non-urgent
    traffic of one shard to the store while it trains.
    """

    store: StoreSpec
    keep: int
    dense_interval_s: float
    restore_from: str | None
    rebase: Rebase = "Intermittent"
    strategy: Strategy = "Full"
    fraction: float = 0.125
    max_bytes_per_s: int | None = None
    by_name: ByNameSpec | None = None


#: The metric that compares evaluated models: higher AUC and GAUC are better, lower values of the others.
StopMetric = Literal["AUC", "GAUC", "LogLoss", "NormalisedEntropy"]


@dataclass(frozen=True, slots=True)
class EarlyStopSpec:
    """The job ends after `patience` consecutive evaluations without a new best one, and once one reaches the `target`.

    An evaluation is the new best if its `metric` improves on the best before by more than `min_improvement`, or is at
    `target` or better. None: the job does not end so.
    """

    metric: StopMetric
    patience: int | None
    min_improvement: float = 0.0
    target: float | None = None


@dataclass(frozen=True, slots=True)
class EvaluationSpec:
    """After each `every` trained samples the network is scored on the first `samples` held-out samples.

    0: not during training. Held-out samples are those of `uri`, in the format of the job's data, or a part of its data.
    With `early_stop` the network is scored after the last sample, too, and the job's model is that of the best
    evaluation. With `group_by` it is also scored for each value of that column.
    """

    every: int
    samples: int
    early_stop: EarlyStopSpec | None = None
    uri: str | None = None
    group_by: str | None = None


@dataclass(frozen=True, slots=True)
class PublishSpec:
    """A chain of models at the URI `to`, which grows while the job trains.

    The newest anchor is published `every_s` seconds after the last one, or `every_samples` samples after it; the other
    is None. `format` is that of the network. `keep` whole models stay, with all later entries.
    """

    to: str
    every_s: float | None
    every_samples: int | None
    format: ExportFormat = "safetensors"
    keep: int = 2


#: A heartbeat is overdue after this time.
OVERDUE_S = 3.0
#: `JobSpec.workers` if the first leader is to measure the fastest number. Images of 0.1.0 read it as one.
MEASURED = 0


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The spec that all trainers and shards of one job share. The model's seed is `data.seed`.

    `contract` is the version in force between the operator and the pods, or a higher one (`description_version`). A
    member without a heartbeat for `silence_s` is reported as silent. Parameters and optimizers are float32 at any
    `precision`, and rows have the precision of their table. Vectors are requested `prefetch` steps in advance: with 1
    they include all pushes of their own trainer, with n > 1 they miss those of n steps. A trainer computes each slice
    with `workers` threads in parallel, or with the number that the first leader found fastest (MEASURED,
    `WorkersManifest`). The dense network is computed on `device`, everything else on the CPU. Each trainer keeps
    unsaved pushes for replaced shards in `replay_bytes` of memory; 0: none. Further pushes go to `spill_bytes` on its
    disk; 0: none. With an `evaluation` the network is scored on held-out samples during training. Each `parity_shards`
    shards have a common parity in the memory of another one; 0: there is none. With the `sparse_updates` PerStep, which
    need lockstep, shards merge the pushes of a step to one update of its rows. Jobs of earlier releases do not have the
    field: each push is an update. With `publish` one more process publishes models while the job trains.
    """

    contract: int
    job_uid: str
    job_name: str
    model: ModelSpec
    data: DataSpec
    trainers: int
    shards: int
    snapshots: SnapshotSpec
    silence_s: float
    precision: Precision = "fp32"
    dense_sync: DenseSync = "AllReduce"
    prefetch: int = 1
    workers: int = 1
    device: Device = "cpu"
    replay_bytes: int = 0
    spill_bytes: int = 0
    evaluation: EvaluationSpec | None = None
    parity_shards: int = 0
    sparse_updates: SparseUpdates = "PerPush"
    publish: PublishSpec | None = None

    @property
    def overdue_s(self) -> float:
        """The time without a heartbeat after which a member is reported as overdue; at most `silence_s`."""
        return min(OVERDUE_S, self.silence_s)

    @property
    def replay(self) -> ReplayPolicy:
        """The buffers for pushes that `replay_bytes` and `spill_bytes` describe."""
        return ReplayPolicy(self.replay_bytes, self.spill_bytes)

    @property
    def lockstep(self) -> bool:
        """True if all trainers take each step together."""
        return self.dense_sync == "AllReduce"

    @property
    def per_step(self) -> bool:
        """True if shards merge the pushes of all trainers to one update a step.

        A single trainer pushes once a step, and is merged only for dynamic tables, whose lookups wait for their step.
        """
        several = self.trainers > 1 or self.model.has_dynamic_tables
        return self.sparse_updates == "PerStep" and self.lockstep and several


def description_version(version: int, job: JobSpec) -> int:
    """Return the version of a job's description, for pods with which the operator speaks `version`."""
    model = job.model
    stop = None if job.evaluation is None else job.evaluation.early_stop
    raised = (
        "bf16" in model.table_precisions,
        model.has_dynamic_tables,
        model.cross is not None,
        model.has_weights,
        job.data.shuffle_rows == 0,
        job.data.csv is not None,
        job.data.columns is not None and bool(job.data.columns.label_values),
        stop is not None and stop.target is not None,
        job.data.follow is not None,
        job.data.kafka is not None,
        job.data.format in TABLE_FORMATS,
    )
    return max(version, NEW_FIELDS_VERSION) if any(raised) else version


#: The total of a job whose data has no end yet, above the samples of any step: every step is a whole batch.
OPEN_TOTAL = 2**62


def samples_at(step: int, batch_size: int, total_samples: int) -> int:
    """Return the samples trained once `step` steps are complete (step 0: none); the last batch may be smaller."""
    return min(step * batch_size, total_samples)


def steps_in(total_samples: int, batch_size: int) -> int:
    """Return the number of steps that train all samples once."""
    return -(-total_samples // batch_size)
