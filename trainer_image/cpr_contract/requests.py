"""What commands of `cprjob` ask processes of the trainer image, and are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What `cprjob calibrate` asks `python -m cpr_trainer calibrate` to try, and is told.
#
# Both ends are of one installation, on one machine: these documents carry no contract version. The job's spec comes in
# `CPR_SPEC`, an `Experiment` as JSON on the standard input; the answer is one `TrialReport` a line.
from cpr_contract.choices import Bits, Dense, ExportFormat, Missing, Strategy
from cpr_contract.model import ModelSpec
from cpr_contract.reports import Groups, GroupScores
from cpr_contract.spec import StoreSpec


@dataclass(frozen=True, slots=True)
class ShardLoss:
    """A failure: once the portion `at` of the run is trained, `shards` go back to how they were at `back_to`.

    0 <= back_to < at <= 1; both are rounded to whole steps.
    """

    shards: tuple[int, ...]
    back_to: float
    at: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One run over the job's data. `seed` stands in for `data.seed` as the seed of the order and the first values."""

    seed: int
    losses: tuple[ShardLoss, ...]


@dataclass(frozen=True, slots=True)
class Experiment:
    """Runs of one job, one after another, its tables divided into `shards`."""

    shards: int
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial ended in.

    auc, log_loss (nats): by progressive validation, as a job's status has them; None if the samples do not allow one.
    lost_sample_shards: samples that a shard lost, summed over shards. pls: the same as a portion of all samples of all
    shards. lost_row_updates: updates of rows that went with them.
    """

    auc: float | None
    log_loss: float | None
    lost_sample_shards: int
    pls: float
    lost_row_updates: int


@dataclass(frozen=True, slots=True)
class TrialReport:
    """Where trial number `trial` (from 0) stands; `outcome` comes with its last report."""

    trial: int
    samples: int
    total_samples: int
    outcome: Outcome | None


# What `cprjob evaluate` asks of the trainer image, and what it learns.


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """The key of the anchor whose model is to be scored on the rows that the job holds out."""

    anchor: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A model's scores on held-out `samples`.

    `auc`, `log_loss` (nats): of the first label; None if it is the same in all samples, both if there is no label.
    `metrics`: figures by name, as in a trainer's report. `normalised_entropy`, `calibration`: of the first label, as in
    `cpr_contract.reports.HeldOutScores`, as `gauc`, `groups` and `rest`.
    """

    step: int
    samples: int
    auc: float | None
    log_loss: float | None
    metrics: tuple[tuple[str, float], ...] = ()
    normalised_entropy: float | None = None
    calibration: float | None = None
    gauc: float | None = None
    groups: Groups = ()
    rest: GroupScores | None = None


# What `cprjob export` asks of the trainer image.


#: The file that the formats have which write the dense network as a program.
PROGRAMS: dict[ExportFormat, str] = {"torch-export": "network.pt2", "onnx": "network.onnx"}


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The model of which anchor, and how: with `since`, another anchor's key, only the rows that changed after it."""

    anchor: str
    format: ExportFormat = "safetensors"
    since: str | None = None


# What `cprjob import` asks of the trainer image, and what it learns.


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """A model to import from files and folders `sources`, as the anchor of the name `name`.

    `map` says which tensor, by its name or how that ends, becomes which table or layer of the job. With `missing`
    Initialise tables may be missing, and layers then have first values. With `dense` Initialise no layer is taken.
    """

    sources: tuple[str, ...]
    name: str
    map: tuple[tuple[str, str], ...] = ()
    missing: Missing = "Fail"
    dense: Dense = "ByName"


@dataclass(frozen=True, slots=True)
class ImportedTable:
    """A table, and the tensor that it has its rows from. The job's table has `wanted_rows`, by `ids`.

    With `sums` it also has what row-wise Adagrad kept of them.
    """

    name: str
    tensor: str
    rows: int
    wanted_rows: int
    dim: int
    ids: str
    sums: bool


@dataclass(frozen=True, slots=True)
class Imported:
    """The anchor `key`. `layers` parameters and buffers were taken; None: the anchor has no dense network.

    `missing_tables` and `missing_layers` are those of the job that were not there, `unused` the tensors that nothing
    took.
    """

    key: str
    tables: tuple[ImportedTable, ...]
    layers: int | None
    missing_tables: tuple[str, ...]
    missing_layers: tuple[str, ...]
    unused: tuple[str, ...]


# What `cprjob data inspect` asks of the trainer image, and what it learns.


@dataclass(frozen=True, slots=True)
class InspectionRequest:
    """`uri` names files on this machine, whose format is to be guessed; None: the data of the job."""

    uri: str | None


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """One column. `kind` is empty, integer, number or text, or Parquet's name of another type.

    `missing` cells are empty or null. `lowest` and `highest` are those of numbers. `distinct` values are counted
    exactly up to 4096, beyond that estimated with a standard error of 1.6 %; None for types that are neither values
    nor lists of values. `feeds` is the use of the column in the job, empty without one. In a column of bags, statistics
    are those of their ids, `missing` are the empty bags, a bag has `bag_mean` ids on average and at most `bag_most`.
    """

    name: str
    kind: str
    missing: int
    lowest: float | None
    highest: float | None
    distinct: int | None
    feeds: str
    bag_mean: float | None = None
    bag_most: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The data of a job: `trained` rows, `held_out` rows, `samples` in `steps` steps, shuffled in `windows`."""

    trained: int
    held_out: int
    samples: int
    steps: int
    windows: int


@dataclass(frozen=True, slots=True)
class DataStats:
    """All rows of some files. `faults` are the first of the `bad` rows, each with its location. `advice`: sentences."""

    format: str
    header: bool
    files: int
    rows: int
    bad: int
    faults: tuple[str, ...]
    columns: tuple[ColumnStats, ...]
    reading: Reading | None
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Inspection:
    """The statistics of some files, or of a job's data; and of its separate evaluation data, if there is some."""

    data: DataStats
    scored: DataStats | None = None


# What `cprjob snapshots` asks `python -m cpr_trainer inventory`, and is told.
#
# A `Request` as JSON on one line comes in by the standard input; the answer, as JSON too, goes out by the standard
# output. These documents carry no contract version: both ends are of one installation, or `cprjob` and the image of a
# job on a cluster are of one release.


Action = Literal["List", "Verify", "Prune"]

#: `Cut` is what shards saved at a cut that became no anchor.
PointKind = Literal["Anchor", "Cut", "Flush", "Priority", "Dense"]


@dataclass(frozen=True, slots=True)
class Request:
    """What to do with the saves in `store`: those of `job_uid`, or of all jobs if that is None.

    `model` is the job's, where it is known: what a save's layout has to be. To prune, `keep` anchors stay, or nothing
    if it is 0; `forks` are the generations and the steps at which they began, and `recorded` is the step of the newest
    anchor, as far as the job's status knows: a job that runs goes back to no newer one. Nothing is deleted without
    `delete`.
    """

    action: Action
    store: StoreSpec
    job_uid: str | None = None
    model: ModelSpec | None = None
    keep: int = 0
    forks: tuple[tuple[int, int], ...] = ()
    delete: bool = False
    recorded: int | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """A state that can be restored: an anchor, or saves of one step after it.

    `key` is the manifest of the anchor or of the dense save, else of the first shard's save. `shards` have a save in
    it; `size_bytes` are those of its own objects, written last at `written_s` (seconds since the epoch, the store's
    clock). `bits` a value are the fewest in which any of its rows are stored, None for a dense save. It stands on saves
    of the steps `bases`. `strategy` chose the rows of a `Priority` save.
    """

    job_uid: str
    generation: int
    step: int
    samples: int
    kind: PointKind
    key: str
    shards: tuple[int, ...]
    size_bytes: int
    written_s: float
    bits: Bits | None
    bases: tuple[int, ...]
    strategy: Strategy | None


@dataclass(frozen=True, slots=True)
class Damage:
    """An object that is not what it has to be."""

    key: str
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class Listing:
    """What there is, oldest first, job by job; what cannot be read is in `damaged`."""

    points: tuple[Point, ...]
    damaged: tuple[Damage, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """The same, every object read: so many of `size_bytes` in all. `unusable` are keys of points with damage below."""

    points: tuple[Point, ...]
    damaged: tuple[Damage, ...]
    unusable: tuple[str, ...]
    objects: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Pruning:
    """Which points stay and which go; with them go so many objects. They are gone already if `deleted`."""

    stay: tuple[Point, ...]
    go: tuple[Point, ...]
    objects: int
    size_bytes: int
    deleted: bool
