"""`JobSpec`: the part of a CPRJob that its pods need, frozen when the job starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Columns of the Criteo layout: a label, then these.
DENSE_FEATURES = 13
CATEGORICAL_FEATURES = 26
#: How much a model may take in.
MAX_TABLES = 1024
MAX_FEATURES = 2048
MAX_NUMERIC = 4096
#: Labels and targets of one model. Their scores, by name, have to fit into a pod's last word of 4 KiB.
MAX_PREDICTED = 8


#: How the vectors of a bag become one.
Pooling = Literal["Sum", "Mean"]
#: What a network gets of a feature with any number of ids: one vector, or with "None" the sequence of all of them.
FeaturePooling = Literal["Sum", "Mean", "None"]
#: How an id becomes a row of its table: it is the row's number, a value with a row of its own, or it is hashed.
Ids = Literal["CPR64", "RowNumber", "Vocabulary", "XXH64", "Murmur3"]
#: What an id does that has no row: it makes the sample a bad one, or it is taken as `DEFAULT_ROW`.
OutOfRange = Literal["Fail", "DefaultRow"]
DEFAULT_ROW = 0


@dataclass(frozen=True, slots=True)
class PhaseSpec:
    """Some steps of a learning rate. Levels are portions of the `learning_rate`, and 1 before the first phase.

    Warmup goes from `start` to 1, Linear, Cosine and Polynomial go from where the last phase ended to `end`, Step takes
    the level times `factor` after each `every` steps, Constant stays. `power` is for Polynomial.
    """

    kind: Literal["Constant", "Warmup", "Linear", "Cosine", "Polynomial", "Step"]
    steps: int
    start: float = 0.0
    end: float = 0.0
    power: float = 1.0
    every: int = 1
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """The optimizer of the dense network, as torch.optim has it.

    `momentum` and `nesterov` are for SGD, `epsilon` for all others, `beta1` and `beta2` for Adam and AdamW.
    `weight_decay` is added to the gradient as an L2 penalty is, but by AdamW taken from the parameters themselves.
    Gradients with a norm above `clip_norm` are scaled down to it; None: none are.
    """

    kind: Literal["SGD", "Adagrad", "Adam", "AdamW"]
    learning_rate: float
    momentum: float = 0.0
    nesterov: bool = False
    epsilon: float = 1e-10
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    clip_norm: float | None = None
    schedule: tuple[PhaseSpec, ...] = ()


RowOptimizer = Literal["SGD", "RowWiseAdagrad", "Adagrad", "Adam"]


@dataclass(frozen=True, slots=True)
class SparseOptimizerSpec:
    """The optimizer of embedding rows. `epsilon` is for all but SGD, `beta1` and `beta2` are for Adam."""

    kind: RowOptimizer
    learning_rate: float
    epsilon: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    schedule: tuple[PhaseSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One embedding table. In a model that states no features, table t takes the t-th categorical column.

    With a `pooling` a sample has a bag of any number of ids there, without one exactly one id. Without an `optimizer`
    it has that of the model, without a `dim` its embedding_dim. `out_of_range` is for the ids `RowNumber` and
    `Vocabulary`, `hash_seed` for `XXH64` and `Murmur3`. With the ids `Vocabulary`, value i, from 0, has row i + 1:
    `vocabulary` is the URI of the file of values, or they are those that the data has at least `min_count` times.
    """

    name: str
    rows: int
    pooling: Pooling | None = None
    optimizer: SparseOptimizerSpec | None = None
    dim: int | None = None
    ids: Ids = "CPR64"
    out_of_range: OutOfRange = "Fail"
    hash_seed: int = 0
    vocabulary: str | None = None
    min_count: int | None = None

    @property
    def id_scheme(self) -> str:
        """What says which id has which row: rows of a save mean nothing to a table with another scheme."""
        return f"{self.ids} with seed {self.hash_seed}" if self.ids in {"XXH64", "Murmur3"} else self.ids


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """What a network gets by one name: vectors of `table` for the ids in a `column`.

    Without a `pooling` a sample has exactly one id, with one any number. Of more than `max_length` ids the last ones
    are kept. `weights` is a column with a weight for each id.
    """

    name: str
    column: str
    table: str
    pooling: FeaturePooling | None = None
    max_length: int | None = None
    weights: str | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What is trained. `entrypoint`, as "package.module:factory", builds the dense network; without one it is a DLRM.

    `bottom_mlp` and `top_mlp` are the DLRM's layer widths after the input; they end in embedding_dim and 1. An
    entrypoint may read them as it likes, and they may be empty then. The network predicts the `labels`, 0 or 1, then
    the `targets`, numbers, each with one output.

    With `features` the network gets these by name, and several may share a table; without, each table is one feature.
    `numeric` says how many numeric features there are; without, there are DENSE_FEATURES, padded with zeros.
    """

    embedding_dim: int
    bottom_mlp: tuple[int, ...]
    top_mlp: tuple[int, ...]
    tables: tuple[TableSpec, ...]
    dense_optimizer: OptimizerSpec
    sparse_optimizer: SparseOptimizerSpec
    entrypoint: str | None = None
    labels: tuple[str, ...] = ("label",)
    targets: tuple[str, ...] = ()
    features: tuple[FeatureSpec, ...] = ()
    numeric: int | None = None

    @property
    def dense_width(self) -> int:
        """How many numeric features a sample has."""
        return DENSE_FEATURES if self.numeric is None else self.numeric

    @property
    def feature_tables(self) -> tuple[int, ...]:
        """The table of each feature, as a place in `tables`. Raises KeyError if there is none of that name."""
        if not self.features:
            return tuple(range(len(self.tables)))
        places = {table.name: place for place, table in enumerate(self.tables)}
        return tuple(places[feature.table] for feature in self.features)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """What a sample has of logits, and of labels: one number, or a vector of as many as are predicted."""
        outputs = len(self.labels) + len(self.targets)
        return () if outputs == 1 else (outputs,)

    @property
    def table_optimizers(self) -> tuple[SparseOptimizerSpec, ...]:
        """The optimizer of each table."""
        return tuple(table.optimizer or self.sparse_optimizer for table in self.tables)

    @property
    def table_dims(self) -> tuple[int, ...]:
        """The length of each table's vectors."""
        return tuple(table.dim or self.embedding_dim for table in self.tables)

    @property
    def table_ids(self) -> tuple[tuple[str, str], ...]:
        """Name and `id_scheme` of each table whose ids are not CPR64."""
        return tuple((table.name, table.id_scheme) for table in self.tables if table.ids != "CPR64")

    @property
    def dims(self) -> tuple[int, ...]:
        """The lengths that vectors have, each once, in the order of the tables: one, unless tables differ."""
        return tuple(dict.fromkeys(self.table_dims))

    @property
    def bands(self) -> tuple[int, ...]:
        """The band of each table, as a place in `dims`: tables of one dim are a band."""
        return tuple(map(self.dims.index, self.table_dims))


@dataclass(frozen=True, slots=True)
class ColumnsSpec:
    """The columns of a table that feed the model: by name, or by number from 1 where a file names none.

    `counts` become log(1 + max(x, 0)), `numbers` stay as they are. The t-th of `categories` feeds the t-th table; there
    are none where the model states features, which name their own columns. `separator` stands between the ids of a bag
    in text. `labels` are 0 or 1, `targets` any numbers.
    """

    labels: tuple[str, ...]
    counts: tuple[str, ...]
    numbers: tuple[str, ...]
    categories: tuple[str, ...]
    separator: str | None = None
    targets: tuple[str, ...] = ()


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


DataFormat = Literal["Criteo", "CSV", "TSV", "Parquet", "Synthetic", "Custom"]


@dataclass(frozen=True, slots=True)
class DataSpec:
    """Where samples come from. `batch_size` is global: it does not depend on the number of trainers.

    Exactly one of `epochs` and `samples` is set; `Synthetic` data needs `samples` and no `uri`. `Custom` data comes
    from `entrypoint`, "package.module:factory", which is called with `uri`. `columns` are those of CSV, TSV, Parquet
    and Custom; `header` says whether text files begin with their names. Rows are shuffled in windows of
    `shuffle_rows`; the last portion `hold_out` of them is never trained. Objects are read at `store`, or without one at
    the endpoint of the job's store.
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


#: What a table does whose rows are not as many as its source has: row r takes row r mod the source's rows, or row r.
Resized = Literal["Fail", "Rehash", "Truncate"]


@dataclass(frozen=True, slots=True)
class TableSourceSpec:
    """Table `table` of a job starts from `source`, a table of the anchor; `resized` goes before that of all tables."""

    table: str
    source: str
    resized: Resized | None = None


@dataclass(frozen=True, slots=True)
class ByNameSpec:
    """How a job starts from an anchor of other tables: each takes the rows of the one of its name, or that `map` names.

    `missing` is of what this job has and the anchor has not, `extra` of what only the anchor has: tables, and the dense
    network's parameters and buffers, which count by name and shape. With `dense` Initialise the network has its first
    values.
    """

    missing: Literal["Fail", "Initialise"] = "Fail"
    extra: Literal["Fail", "Ignore"] = "Fail"
    resized: Resized = "Fail"
    map: tuple[TableSourceSpec, ...] = ()
    dense: Literal["ByName", "Initialise"] = "ByName"


Rebase = Literal["Consecutive", "OneShot", "Intermittent"]
Strategy = Literal["Full", "MFU", "SSU", "SCAR", "Growth"]
Bits = Literal[32, 8, 4, 3, 2]


@dataclass(frozen=True, slots=True)
class SnapshotSpec:
    """Where and how saves are kept. `keep` anchors stay restorable; `restore_from` is another job's anchor key.

    Without `by_name`, that anchor is of the same tables and network.

    `rebase` says on which earlier save a shard's save stands: `Consecutive` on the last, `OneShot` on the last full
    one, `Intermittent` on the last full one until another is expected to pay. Between cuts each shard saves the portion
    `fraction` of the rows of large tables by `strategy`; `Full` saves none. `max_bytes_per_s` limits what one shard
    sends while it trains, but for what is urgent.
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


#: What tells how good an evaluated model is: AUC and GAUC are to rise, the others are to fall.
StopMetric = Literal["AUC", "GAUC", "LogLoss", "NormalisedEntropy"]


@dataclass(frozen=True, slots=True)
class EarlyStopSpec:
    """The job ends after `patience` evaluations in a row of which none is the best.

    An evaluation is the best if its `metric` is better than that of the best before by more than `min_improvement`.
    """

    metric: StopMetric
    patience: int
    min_improvement: float = 0.0


@dataclass(frozen=True, slots=True)
class EvaluationSpec:
    """After each `every` trained samples the network is scored on the first `samples` of those that are held out.

    0: not while it trains. They are those of `uri`, in the format of the job's data, or a part of that. With
    `early_stop` the network is scored after the last sample, too, and the model of the best evaluation is the job's.
    With `group_by` it is scored by the values of that column as well.
    """

    every: int
    samples: int
    early_stop: EarlyStopSpec | None = None
    uri: str | None = None
    group_by: str | None = None


#: How trainers keep their dense copies together: step by step in lockstep, or by averages in the background.
DenseSync = Literal["AllReduce", "ShadowEASGD", "ShadowMA", "ShadowBMUF"]
#: What the dense network computes with, and embedding vectors and their gradients travel as.
Precision = Literal["fp32", "bf16"]
#: A heartbeat that is missing for so many seconds is overdue.
OVERDUE_S = 3.0

#: Where trainers compute the dense network.
Device = Literal["cpu", "cuda"]
#: `JobSpec.workers` of a job whose first leader measures how many are fastest. Images of 0.1.0 read it as one.
MEASURED = 0


@dataclass(frozen=True, slots=True)
class JobSpec:
    """All that the trainers and shards of one job must agree on. The model's seed is `data.seed`.

    `silence_s` is how long a member may owe its peers a heartbeat before they call it silent. Whatever the
    `precision`, parameters, rows and optimizers are float32. Vectors are asked for `prefetch` steps ahead: with 1 they
    miss no push of their own trainer, with more those of so many steps. A trainer computes each slice with `workers`
    threads side by side, or with as many as the first leader found fastest (MEASURED, `WorkersManifest`). The dense
    network is computed on `device`; everything else, saves among it, is on the CPU. Each trainer keeps pushes that no
    save holds yet in `replay_bytes` of memory, for shards that are replaced; 0: none. Where that is full, they go to
    `spill_bytes` on its disk; 0: none. With an `evaluation` the network is scored on held-out samples while it trains.
    Each `parity_shards` shards have a common parity in the memory of another one; 0: there is none.
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

    @property
    def overdue_s(self) -> float:
        """How long a member may owe its peers a heartbeat before they call it overdue, which is before silent."""
        return min(OVERDUE_S, self.silence_s)

    @property
    def lockstep(self) -> bool:
        """Whether all trainers take each step together."""
        return self.dense_sync == "AllReduce"


def samples_at(step: int, batch_size: int, total_samples: int) -> int:
    """Samples trained once `step` steps are complete (step 0: none); the last batch may be smaller."""
    return min(step * batch_size, total_samples)


def steps_in(total_samples: int, batch_size: int) -> int:
    """Steps that train all samples once."""
    return -(-total_samples // batch_size)
