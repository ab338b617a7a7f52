"""`JobSpec`: the part of a CPRJob that its pods need, frozen when the job starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cpr_contract.choices import Dense, DenseSync, Device, Extra, Missing, Precision, Rebase, ReplayPolicy, Strategy
from cpr_contract.model import ModelSpec


@dataclass(frozen=True, slots=True)
class ColumnsSpec:
    """The columns of a table that feed the model: by name, or by number from 1 where a file names none.

    `counts` become log(1 + max(x, 0)), `numbers` stay as they are. The t-th of `categories` feeds the t-th table; there
    are none where the model states features, which name their own columns. `separator` stands between the ids of a bag
    in text. `labels` are 0 or 1, `targets` any numbers. Ids in columns of `integers` are whole numbers: 12, 12.0 and
    " 12" are one id.
    """

    labels: tuple[str, ...]
    counts: tuple[str, ...]
    numbers: tuple[str, ...]
    categories: tuple[str, ...]
    separator: str | None = None
    targets: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()


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

    missing: Missing = "Fail"
    extra: Extra = "Fail"
    resized: Resized = "Fail"
    map: tuple[TableSourceSpec, ...] = ()
    dense: Dense = "ByName"


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


#: A heartbeat that is missing for so many seconds is overdue.
OVERDUE_S = 3.0
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
    def replay(self) -> ReplayPolicy:
        """The buffers for pushes that `replay_bytes` and `spill_bytes` describe."""
        return ReplayPolicy(self.replay_bytes, self.spill_bytes)

    @property
    def lockstep(self) -> bool:
        """True if all trainers take each step together."""
        return self.dense_sync == "AllReduce"


def samples_at(step: int, batch_size: int, total_samples: int) -> int:
    """Samples trained once `step` steps are complete (step 0: none); the last batch may be smaller."""
    return min(step * batch_size, total_samples)


def steps_in(total_samples: int, batch_size: int) -> int:
    """Steps that train all samples once."""
    return -(-total_samples // batch_size)
