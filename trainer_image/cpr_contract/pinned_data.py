"""Documents that pin the data of a job: its files and their blocks, data that arrives, and vocabularies.

A leader writes each once, and all trainers of the job read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cpr_contract.limits import MAX_LATE_FILES, AtMost, last
from cpr_contract.manifests import MANIFEST

DATA = "data.json"
EVALUATION_DATA = "evaluation-data.json"


@dataclass(frozen=True, slots=True)
class Constant:
    """A column with one value in all rows of a file. `kind` names its Arrow type; a `text` of None is a null."""

    name: str
    kind: str
    text: str | None


@dataclass(frozen=True, slots=True)
class TableColumn:
    """The column `name` of a table. In a file with field ids it is that of `field_id`, else the first of `names` there.

    A file without it has `default` in all rows, or nulls.
    """

    name: str
    field_id: int | None
    names: tuple[str, ...]
    default: Constant | None = None


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version of a table: the number of a Delta Lake version, or the id of an Iceberg snapshot.

    `tag` is that of the version's commit in the log of a Delta table whose later versions are trained too, empty
    without such a file. Another tag shows that the log was written again.
    """

    version: int
    columns: tuple[TableColumn, ...]
    tag: str = ""


@dataclass(frozen=True, slots=True)
class DataManifest:
    """The files of a job's data as its first leader found them. All trainers read these during the whole job.

    With `evaluates` it describes the separate evaluation data.
    `uris` to `blocks` have an item for each file: its size and its tag (see `cpr_trainer.store.Version`), True if it
    can only be read from the front, the index of its column names in `columns`, and its number of blocks.
    `block_rows` to `block_sizes` have one for each block, file by file: its rows and their position.
    Files of a `table` have the columns of its version, and the values that the table's log has for them: `constants_of`
    has the index in `constants` for each file. In a pin of data that arrives it is the version up to which the log was
    read, even without a file.

    The files of a Kafka topic are ranges of offsets, such as "clicks-3@100-250": 100 to 249 of partition 3. The size of
    one is that of its values in bytes, its tag their digest, and its block begins at its first offset and has its
    number of offsets as size.
    """

    contract: int
    job_uid: str
    uri: str
    uris: tuple[str, ...]
    sizes: tuple[int, ...]
    tags: tuple[str, ...]
    in_turn: tuple[bool, ...]
    columns_of: tuple[int, ...]
    blocks: tuple[int, ...]
    columns: tuple[tuple[str, ...], ...]
    block_rows: tuple[int, ...]
    block_starts: tuple[int, ...]
    block_sizes: tuple[int, ...]
    evaluates: bool = False
    table: TableVersion | None = None
    constants: tuple[tuple[Constant, ...], ...] = ()
    constants_of: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PinnedSegment:
    """A segment of data that arrives: sample numbers from `first_sample` on, of the rows of `files`, then `voids`.

    Segments are numbered from 0 as their pins are from 1. `rows` counts the rows that are trained.
    """

    number: int
    first_sample: int
    rows: int
    voids: int
    files: DataManifest

    @property
    def stop(self) -> int:
        """The sample number after its last one."""
        return self.first_sample + self.rows + self.voids


@dataclass(frozen=True, slots=True)
class DataPin:
    """One of the objects that pin the data of a job that follows it. They are numbered from 1, and never overwritten.

    `previous` is the SHA-256 (hex) of the pin before, empty in the first. No anchor that is kept needs a segment before
    that of number `first_needed`. The last one of `segments` is the pin's own; a pin that restates has all from
    `first_needed` on, and in `names` the other pinned files that a listing returned then, and the last of all names.
    `late` are those of its own files whose names came before earlier ones. No pin follows one with `end`.
    `voids_before` are the void samples before the first of `segments`, `late_before` the late files of all earlier
    pins. `pinned_at` is the time in seconds since the epoch, by the clock of the leader that wrote it.
    """

    contract: int
    job_uid: str
    number: int
    previous: str
    segments: tuple[PinnedSegment, ...]
    first_needed: int = 0
    names: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    end: bool = False
    voids_before: int = 0
    late_before: int = 0
    pinned_at: float = 0.0


@dataclass(frozen=True, slots=True)
class PinnedData:
    """The sum of a job's data pins in a report. `pins` is the number of the newest, which was written at `pinned_at`.

    `samples` is the sample number after the last pinned one; `voids` of those before it are void. `late_files` counts
    the files whose names came before earlier ones, and `late` are the last of them. Nothing follows once the data has
    `ended`. `pinned_at` is in seconds since the epoch, by the clock of the leader then.
    """

    pins: int
    samples: int
    voids: int
    pinned_at: float
    ended: bool = False
    late_files: int = 0
    late: Annotated[tuple[str, ...], AtMost(MAX_LATE_FILES, last)] = ()

    def lag(self, trained: int) -> int:
        """Return the number of pinned samples that a job with `trained` samples has still to train."""
        return max(self.samples - trained, 0)


@dataclass(frozen=True, slots=True)
class SegmentScores:
    """The progressive validation of the newest complete segments in a report. Each sample is scored before training.

    The samples are those from `first_sample` to before `stop`, both of them boundaries of batches. `scored` are the
    real ones among them. All samples of the pins up to number `pin` come before `stop`. The other fields are those of
    `cpr_contract.reports.HeldOutScores`.
    """

    pin: int
    first_sample: int
    stop: int
    scored: int
    auc: float | None
    logloss: float | None
    normalised_entropy: float | None
    calibration: float | None


@dataclass(frozen=True, slots=True)
class TableVocabulary:
    """The vocabulary of a table: the SHA-256, in hex, of its `values` values, a line each."""

    table: str
    digest: str
    values: int


@dataclass(frozen=True, slots=True)
class VocabularyManifest:
    """The vocabularies of a job's tables as its first leader found them; written after their values."""

    contract: int
    job_uid: str
    tables: tuple[TableVocabulary, ...]


def vocabulary_key(job_uid: str, digest: str | None = None) -> str:
    """The key of a job's `VocabularyManifest`, or of values by their digest."""
    return f"{job_uid}/vocabularies/{MANIFEST if digest is None else f'{digest}.txt'}"


def data_key(job_uid: str, *, evaluates: bool = False) -> str:
    """The key of a job's `DataManifest`."""
    return f"{job_uid}/{EVALUATION_DATA if evaluates else DATA}"


def data_pins_prefix(job_uid: str) -> str:
    """The folder of a job's `DataPin` objects, with its slash."""
    return f"{job_uid}/data-pins/"


def data_pin_key(job_uid: str, number: int) -> str:
    """The key of a job's `DataPin`."""
    return f"{data_pins_prefix(job_uid)}{number:010d}.json"
