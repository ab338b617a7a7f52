"""Requests of `cprjob` commands to processes of the trainer image, and the responses.

A process reads the request as JSON from its standard input, and writes the response as JSON to its standard output.
The job's spec is in `CPR_SPEC`. The documents have no contract version: both ends are of one installation, or `cprjob`
and the image of a job on a cluster are of one release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cpr_contract.choices import Bits, Dense, ExportFormat, Missing, Strategy
from cpr_contract.model import ModelSpec
from cpr_contract.records import JobRecord
from cpr_contract.reports import Groups, GroupScores
from cpr_contract.spec import StoreSpec

# --- cprjob calibrate: an `Experiment`; the response is one `TrialReport` a line ---


@dataclass(frozen=True, slots=True)
class ShardLoss:
    """A failure: once the portion `at` of the run is trained, `shards` return to their state at `back_to`.

    0 <= back_to < at <= 1; both are rounded to whole steps.
    """

    shards: tuple[int, ...]
    back_to: float
    at: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One run over the job's data. `seed` replaces `data.seed` as the seed of the order and the first values."""

    seed: int
    losses: tuple[ShardLoss, ...]


@dataclass(frozen=True, slots=True)
class Experiment:
    """Runs of one job, one after another, with its tables divided into `shards`."""

    shards: int
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a trial.

    auc, log_loss (nats): by progressive validation, as in a job's status; None if the samples do not allow one.
    lost_sample_shards: samples that a shard lost, summed over shards. pls: the same as a portion of all samples of all
    shards. lost_row_updates: lost updates of rows.
    """

    auc: float | None
    log_loss: float | None
    lost_sample_shards: int
    pls: float
    lost_row_updates: int


@dataclass(frozen=True, slots=True)
class TrialReport:
    """The progress of trial number `trial` (from 0); its last report has the `outcome`."""

    trial: int
    samples: int
    total_samples: int
    outcome: Outcome | None


# --- cprjob evaluate ---


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """The key of an anchor. Its model is to be scored on the rows that the job holds out."""

    anchor: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A model's scores on held-out `samples`.

    `auc`, `log_loss` (nats): of the first label; `auc` is None if the label is constant, both if there is no label.
    `metrics`: values by name, as in a trainer's report. `normalised_entropy`, `calibration`, `gauc`, `groups` and
    `rest` are as in `cpr_contract.reports.HeldOutScores`.
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


# --- cprjob export ---

#: The file with the dense network, in formats that write it as a program.
PROGRAMS: dict[ExportFormat, str] = {"torch-export": "network.pt2", "onnx": "network.onnx"}


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """An export of the model of `anchor`; with `since`, another anchor's key, only the rows changed after it."""

    anchor: str
    format: ExportFormat = "safetensors"
    since: str | None = None


# --- cprjob import ---


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """A model to import from files and folders `sources`, as the anchor `name`.

    `map` has pairs of a tensor, by its name or a suffix of it, and a table or layer of the job. With `missing`
    Initialise tables may be missing, and missing layers have first values. With `dense` Initialise no layer is
    imported.
    """

    sources: tuple[str, ...]
    name: str
    map: tuple[tuple[str, str], ...] = ()
    missing: Missing = "Fail"
    dense: Dense = "ByName"


@dataclass(frozen=True, slots=True)
class ImportedTable:
    """A table, and the tensor with its rows. The job's table has `wanted_rows`, by `ids`.

    With `sums` the state of row-wise Adagrad was imported, too. The rows of a dynamic table are those of the ids in the
    tensor `row_ids`, or of the keys in `row_keys`; without either, row r is of the id r. `dropped` rows found no slot.
    """

    name: str
    tensor: str
    rows: int
    wanted_rows: int
    dim: int
    ids: str
    sums: bool
    row_ids: str | None = None
    row_keys: str | None = None
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Imported:
    """The anchor `key`. `layers` parameters and buffers were imported; None: the anchor has no dense network.

    `missing_tables` and `missing_layers` are those of the job without a tensor, `unused` the tensors that were not
    imported.
    """

    key: str
    tables: tuple[ImportedTable, ...]
    layers: int | None
    missing_tables: tuple[str, ...]
    missing_layers: tuple[str, ...]
    unused: tuple[str, ...]


# --- cprjob data inspect, cprjob init ---

#: The most different values of a column that its statistics list.
MAX_VALUES = 32


@dataclass(frozen=True, slots=True)
class InspectionRequest:
    """The files at `uri` on this machine, in a format to be detected; None: the data of the job.

    Of files with more rows, whole blocks with about `rows` of them are read, from all parts of the files; None: all.
    Cells of the columns `bags` in text are lists of ids, with `separator` between them.
    """

    uri: str | None
    rows: int | None = None
    bags: tuple[str, ...] = ()
    separator: str | None = None


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """One column. `kind` is empty, integer, number or text, or Parquet's name of another type.

    Types that differ between files are "int64 or text". `missing` cells are empty or null. `lowest` and `highest` are
    those of numbers. `distinct` values are counted exactly up to 4096, beyond that estimated with a standard error of
    1.6 %; None for types that are neither values nor lists of values. `repeated` of them occur at least twice. `feeds`
    is the use of the column in the job, empty if unused. In a column of bags, statistics are those of their ids,
    `missing` are the empty bags, a bag has `bag_mean` ids on average and at most `bag_most`.
    `values` are the first different values, with the number of their cells if there are no more than MAX_VALUES
    different ones. `whole`: there are numbers, and all but NaN are whole. `finite`: no number is NaN or infinite.
    `ordered`: no value is below that of the row before.
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
    repeated: int | None = None
    values: tuple[tuple[str, int], ...] = ()
    whole: bool = False
    finite: bool = True
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """The data of a job: `trained` rows, `held_out` rows, `samples` in `steps` steps, shuffled in `windows`; 0: not."""

    trained: int
    held_out: int
    samples: int
    steps: int
    windows: int


@dataclass(frozen=True, slots=True)
class DataStats:
    """A set of files with `rows`. `faults` locate the first of the `bad` rows. `advice`: sentences.

    Statistics are those of the `read` rows; None: of all.
    """

    format: str
    header: bool
    files: int
    rows: int
    bad: int
    faults: tuple[str, ...]
    columns: tuple[ColumnStats, ...]
    reading: Reading | None
    advice: tuple[str, ...] = ()
    read: int | None = None


@dataclass(frozen=True, slots=True)
class Inspection:
    """The statistics of files or of a job's data, and of its separate evaluation data, if it has any."""

    data: DataStats
    scored: DataStats | None = None


# --- cprjob snapshots ---

Action = Literal["List", "Verify", "Prune"]

#: `Cut` is of shards' saves at a cut without an anchor.
PointKind = Literal["Anchor", "Cut", "Flush", "Priority", "Dense"]


@dataclass(frozen=True, slots=True)
class Request:
    """An action on the saves in `store`: on those of `job_uid`, or of all jobs if it is None.

    `model`, if given, is the job's, and determines the expected layout of saves. A pruning keeps `keep` anchors; 0:
    nothing. `forks` are the generations and their first steps. `recorded` is the step of the newest anchor in the job's
    status: a running job restores no newer one. Without `delete` nothing is deleted.
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
    clock). `bits` is the minimum of bits a value over its rows, None for a dense save. It is based on saves of the
    steps `bases`. `strategy` chose the rows of a `Priority` save.
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
    """A damaged object."""

    key: str
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class Listing:
    """All points, job by job, oldest first; unreadable objects are in `damaged`."""

    points: tuple[Point, ...]
    damaged: tuple[Damage, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """A listing for which all `objects` were read, `size_bytes` in total. `unusable` are keys of points with damage."""

    points: tuple[Point, ...]
    damaged: tuple[Damage, ...]
    unusable: tuple[str, ...]
    objects: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Pruning:
    """The points that stay, and the points to delete with their `objects`. They are deleted already if `deleted`."""

    stay: tuple[Point, ...]
    go: tuple[Point, ...]
    objects: int
    size_bytes: int
    deleted: bool


# --- cprjob report and ui of a store: a `HistoryRequest`; the response is one `History` ---


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """A request for the newest record of `job_uid`, or of every job in the store if it is None."""

    store: StoreSpec
    job_uid: str | None


@dataclass(frozen=True, slots=True)
class History:
    """The records of jobs, by uid."""

    records: tuple[JobRecord, ...]
