"""Manifests and their keys in the store. A save is valid when its manifest exists and every part verifies.

docs/store.md shows all keys. A folder named by a step alone belongs to a cut. The suffixes `-flush`, `-priority` and
`-dense` (a dense save apart from any cut) separate different saves of one step. The store adds bucket and prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from cpr_contract.choices import Bits, Precision, Strategy
from cpr_contract.model import RowOptimizer

MANIFEST = "manifest.json"
RESTORE_RECORD = "origin.json"
WORKERS = "workers.json"

#: Half-open ranges of global samples, sorted and merged.
Ranges = tuple[tuple[int, int], ...]
#: The `table_ids` of a model.
TableIds = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ManifestRef:
    """A manifest by key and SHA-256 (hex) of its bytes."""

    key: str
    digest: str


@dataclass(frozen=True, slots=True)
class Part:
    """One object of a save; `crc32c` is of its bytes.

    It holds `rows` embedding rows of the places [first, first + span). For dense state all three are 0.
    """

    key: str
    size_bytes: int
    crc32c: int
    rows: int = 0
    first: int = 0
    span: int = 0


@dataclass(frozen=True, slots=True)
class RowUpdates:
    """The number of row updates of one shard: a push counts once for each row in it.

    `pushed[r]` are those of rank r in all steps up to `applied[r]`, lost ones included. `lost` are missing from the
    rows; it is an upper bound unless `exact`. In a save, `counted[r]` is the last step that `pushed[r]` counts: a rank
    may have been lost before it could count the steps that it misses. Empty: all up to `applied`.
    """

    pushed: tuple[int, ...] = ()
    lost: int = 0
    exact: bool = True
    counted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RestoreRecord:
    """The save that an incarnation of a shard restored, written before it serves: the link of the lineage.

    `parent` is None for the generation's anchor or step 0. Saves of the parent after `step` are not on the lineage,
    except the priority saves in `replayed`, oldest first.
    """

    contract: int
    job_uid: str
    generation: int
    index: int
    incarnation: int
    parent_incarnation: int | None
    parent: ManifestRef | None
    step: int
    samples: int
    replayed: tuple[ManifestRef, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardManifest:
    """One shard's save: at a cut (`Anchor`), at SIGTERM (`Flush`), or of its most important rows (`Priority`).

    The shard holds the places [first_place, first_place + places). If tables have several dims it also holds the ranges
    (start, end) of `further`. An `Anchor` or `Flush` is complete: a restore applies the saves of `chain`, oldest first,
    then this one. Rows in none of them have their first values. A `Priority` save has no chain: it applies to any
    complete save before it. `strategy` chose its rows. `layout` is a hash of (tables, dim, optimizer). `applied[r]` is
    the last step applied of rank r. `lost` are the ranges of samples lost on this shard since the generation's anchor.
    `rows` counts the rows in its parts, which are stored in `bits` a value. `row_updates` are counted since the job
    began, over rollbacks too. A `Priority` save adds `added_updates` to the rows of the save `after` (its key, empty
    for first values); None if its strategy does not count them.
    """

    contract: int
    job_uid: str
    generation: int
    index: int
    incarnation: int
    kind: Literal["Anchor", "Flush", "Priority"]
    step: int
    samples: int
    layout: str
    first_place: int
    places: int
    applied: tuple[int, ...]
    lost: Ranges
    chain: tuple[ManifestRef, ...] = ()
    bits: Bits = 32
    rows: int = 0
    parts: tuple[Part, ...] = ()
    strategy: Strategy | None = None
    row_updates: RowUpdates = RowUpdates()
    after: str = ""
    added_updates: int | None = None
    further: tuple[tuple[int, int], ...] = ()

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """All ranges of places that the shard holds, each from its first to its last + 1."""
        return ((self.first_place, self.first_place + self.places), *self.further)


@dataclass(frozen=True, slots=True)
class SavedTable:
    """A table as it was saved. `optimizer` is the kind of its optimizer, `ids` its `id_scheme`.

    Earlier versions saved rows in float32 only, and did not write `precision`.

    If it has a vocabulary, `vocabulary` is the SHA-256, in hex, of its `values` values, a line each. A dynamic table
    has a `band`, and its capacity as `rows`. It is `counted` if it has cells, which count keys before their admission.
    """

    name: str
    rows: int
    dim: int
    optimizer: RowOptimizer
    ids: str
    vocabulary: str = ""
    values: int = 0
    precision: Precision = "fp32"
    counted: bool = False
    band: int | None = None

    @property
    def is_dynamic(self) -> bool:
        """True if its rows belong to ids for a time: the ids are `Dynamic`."""
        return self.band is not None


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A parameter or buffer of the dense network."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of its values."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class SavedModel:
    """The model of a save, for jobs with another model. Rows missing from the save have their first values by `seed`.

    `parameters` are in the order of the flat dense state. `dense_optimizer` is its optimizer.
    """

    seed: int
    tables: tuple[SavedTable, ...]
    dense_optimizer: str
    parameters: tuple[SavedTensor, ...]


@dataclass(frozen=True, slots=True)
class DenseManifest:
    """A save of the dense state. With `shards` it commits an anchor: written last, naming every shard's save.

    `lost[i]` are shard i's lost ranges at this anchor, `dense_lost` those of the dense state. `ids` are the
    `table_ids` of its model. Saves of earlier versions have no `model`. `best_step` is the step of the best evaluation
    so far; its anchor is kept while this one is. 0 for none, and without `early_stop`.
    """

    contract: int
    job_uid: str
    generation: int
    group: int
    step: int
    samples: int
    total_samples: int
    layout: str
    parts: tuple[Part, ...]
    shards: tuple[ManifestRef, ...] = ()
    lost: tuple[Ranges, ...] = ()
    dense_lost: Ranges = ()
    ids: TableIds = ()
    model: SavedModel | None = None
    best_step: int = 0


@dataclass(frozen=True, slots=True)
class WorkersManifest:
    """The number of workers of each trainer, measured by the job's first leader or stated, with the reason.

    `threads` are torch's threads in the process of a trainer: those of the first leader. An earlier release wrote 0:
    each process has its own number. Both are fixed for the life of the job: gradients are summed by worker and by
    thread, so another number changes their last bits.
    """

    contract: int
    job_uid: str
    workers: int
    reason: str
    threads: int = 0


def workers_key(job_uid: str) -> str:
    """The key of a job's `WorkersManifest`."""
    return f"{job_uid}/{WORKERS}"


def generation_prefix(job_uid: str, generation: int) -> str:
    """The folder of one generation."""
    return f"{job_uid}/gen-{generation:04d}"


def shard_prefix(job_uid: str, generation: int, index: int) -> str:
    """The folder of one shard in one generation: one sub-folder per incarnation."""
    return f"{generation_prefix(job_uid, generation)}/shard-{index:04d}"


def incarnation_prefix(job_uid: str, generation: int, index: int, incarnation: int) -> str:
    """The folder of one incarnation: no other process ever writes there."""
    return f"{shard_prefix(job_uid, generation, index)}/inc-{incarnation:04d}"


def dense_prefix(job_uid: str, generation: int) -> str:
    """The folder of dense saves in one generation: one sub-folder per group."""
    return f"{generation_prefix(job_uid, generation)}/dense"


def probe_prefix(job_uid: str) -> str:
    """The folder of the objects that probe a store before a job begins, with its slash."""
    return f"{job_uid}/probe/"


def step_folder(step: int, kind: Literal["Anchor", "Flush", "Priority", "Dense"] = "Anchor") -> str:
    """The folder of one save below its incarnation or group."""
    suffix = "" if kind == "Anchor" else f"-{kind.lower()}"
    return f"step-{step:09d}{suffix}"
