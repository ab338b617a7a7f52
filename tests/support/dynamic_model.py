"""Anchors of a model with dynamic tables. Their entries are those of real steps, their saves arrays in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpr_contract import CONTRACT_VERSION
from cpr_contract.manifests import DenseManifest, ManifestRef
from cpr_contract.model import DynamicSpec, ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_contract.requests import ExportRequest
from cpr_contract.spec import ColumnsSpec, DataSpec, JobSpec, SnapshotSpec, StoreSpec
from cpr_trainer.arrays import Floats, Values
from cpr_trainer.checkpoint.anchor.committer import commit_anchor
from cpr_trainer.embedding.arena import Arena, LocalRows
from cpr_trainer.embedding.bfloat16 import DTYPES, converted
from cpr_trainer.embedding.dynamic.entries import ENTRY_COLUMNS, Entries, Rules
from cpr_trainer.embedding.dynamic.pages import Pages
from cpr_trainer.embedding.dynamic.rows import dynamic_rows
from cpr_trainer.embedding.dynamic.table import DynamicTables
from cpr_trainer.embedding.optimizers import Assignment
from cpr_trainer.embedding.placement import Placement, layout_hash
from cpr_trainer.embedding.segments import Seeding, Segment
from cpr_trainer.export import model_folder
from cpr_trainer.store import open_store
from cpr_trainer.trainer.state import DenseState
from cprjob_serving.hashes import U64, Cells, hashes
from support.dynamic_steps import keys_of_first

SEED = 7
#: Bands differ in their dim, and each table is one.
TABLES = (
    TableSpec("site", 57, dim=2),
    TableSpec("user", 4 * 4096, dim=3, ids="Dynamic", hash_seed=9, dynamic=DynamicSpec(ttl_steps=4)),
    TableSpec("item", 4 * 4096, dim=4, ids="Dynamic", dynamic=DynamicSpec(default="Zero")),
    TableSpec("page", 4 * 4096, dim=5, ids="Dynamic", dynamic=DynamicSpec(), precision="bf16"),
)
USER, ITEM, PAGE = 1, 2, 3


def dynamic_job(folder: Path, tables: tuple[TableSpec, ...] = TABLES) -> JobSpec:
    """Return a job with the columns `views`, `price`, and one for each table."""
    columns = ColumnsSpec(("click",), ("views",), ("price",), tuple(table.name for table in tables))
    dense, sparse = OptimizerSpec("Adagrad", 0.1), SparseOptimizerSpec("RowWiseAdagrad", 0.1)
    return JobSpec(
        contract=CONTRACT_VERSION,
        job_uid="uid",
        job_name="job",
        model=ModelSpec(4, (8, 4), (8, 1), tables, dense, sparse, numeric=2),
        data=DataSpec("CSV", "file:///rows.csv", 1, None, 64, SEED, 0, columns=columns),
        trainers=1,
        shards=1,
        snapshots=SnapshotSpec(StoreSpec((folder / "store").as_uri(), None, "bucket", "x"), 2, 30.0, None),
        silence_s=10.0,
    )


def keys_of(texts: Sequence[str], table: TableSpec) -> U64:
    """Return the keys of ids."""
    return hashes(Cells.of([text.encode() for text in texts]), "XXH64", table.hash_seed)


def vectors(keys: U64, step: int, dim: int) -> Floats:
    """Return the vectors of keys after a push in a step, float32 [k, dim]; pushes leave the first value as it is."""
    draws = [np.random.default_rng([key, step]).standard_normal(dim, np.float32) for key in keys.tolist()]
    found = np.array(draws, np.float32).reshape(-1, dim)
    found[:, 0] = [key % 1000 / 8 for key in keys.tolist()]
    return found


@dataclass(eq=False)
class TrainedTable:
    """A dynamic table with vectors. pushed: the step of the last push of each key that was not evicted."""

    spec: TableSpec
    table: DynamicTables
    rows: Values
    state: Floats
    pushed: dict[int, int] = field(default_factory=dict)
    evicted: int = 0

    @classmethod
    def of(cls, spec: TableSpec) -> TrainedTable:
        """Return an empty table."""
        assert spec.dynamic is not None
        assert spec.dim is not None
        pages = Pages.of(spec.rows)
        state = np.zeros((pages.slots, 1 + ENTRY_COLUMNS), np.float32)
        table = DynamicTables(pages, Rules.of(spec.dynamic), Entries(state))
        rows: Values = np.zeros((pages.slots, spec.dim), DTYPES[spec.precision])  # type: ignore[assignment]
        return cls(spec, table, rows, state)

    def push(self, step: int, keys: U64) -> None:
        """Take a step."""
        update = self.table.plan(step, keys_of_first(self.table, np.unique(keys)))
        keys = update.keys.keys[update.places]
        pushed = converted(vectors(keys, step, self.rows.shape[1]), self.rows.dtype)
        self.rows[update.slots[update.places]] = pushed
        for key in self.table.entries.keys[update.evicted].tolist():
            del self.pushed[key]
        self.table.commit(update)
        self.pushed |= dict.fromkeys(keys.tolist(), step)
        self.evicted += len(update.evicted)

    def live(self, step: int, ttl_steps: int | None = None) -> dict[int, int]:
        """Return the step of the last push of each key that is live at a step."""
        assert self.spec.dynamic is not None
        ttl = self.spec.dynamic.ttl_steps if ttl_steps is None else ttl_steps
        return {key: last for key, last in self.pushed.items() if not ttl or step - last <= ttl}

    def segment(self, first: int) -> Segment:
        """Return a copy of all slots, whose optimizer keeps one value: the entries follow it."""
        return Segment(first, self.rows.copy(), self.state.copy())


@dataclass(eq=False)
class TrainedModel:
    """The tables of a job, which is not running, and its anchors: the copies of all tables by step."""

    job: JobSpec
    site: Floats = field(default_factory=lambda: np.random.default_rng(0).standard_normal((57, 2), np.float32))
    tables: dict[int, TrainedTable] = field(
        default_factory=lambda: {place: TrainedTable.of(TABLES[place]) for place in (USER, ITEM, PAGE)}
    )
    anchors: dict[tuple[str, int], tuple[Floats, dict[int, Segment]]] = field(default_factory=dict)

    def save(self, step: int, *, shards: int = 1, uid: str = "uid") -> str:
        """Commit an anchor of some shards, and return its key."""
        self.anchors[uid, step] = self.site.copy(), {place: each.segment(0) for place, each in self.tables.items()}
        layout, ids = layout_hash(self.job.model), self.job.model.table_ids
        meta = DenseManifest(CONTRACT_VERSION, uid, 1, 1, step, 1000, 1000, layout, (), ids=ids)
        state = DenseState(self.job, 1000)
        state.begin({})
        refs = tuple(ManifestRef(f"{uid}/{step}/{shard}", "0" * 64) for shard in range(shards))
        store = open_store(self.job.snapshots.store, None, None)
        return commit_anchor(store, meta, state.tensors(), refs, ((),) * shards).key

    def load(self, _store: Any, job: JobSpec, manifest: DenseManifest, placement: Placement, index: int) -> LocalRows:
        """Return a shard of an anchor, as `load_anchor` does."""
        site, dynamic = self.anchors[manifest.job_uid, manifest.step]
        segments, first = list[Segment](), 0
        for place in range(len(TABLES)):
            if place in dynamic:
                pages, whole = placement.pages(place, index), dynamic[place]
                slots = slice(pages.first * 4096, pages.last * 4096)
                segments.append(Segment(first, whole.rows[slots], whole.state[slots]))
            else:
                rows = [each.rows for each in placement.rows_of(index) if (each.tables == place).all()]
                values = site[np.concatenate(rows)]
                segments.append(Segment(first, values, np.ones((len(values), 1), np.float32)))
            first = segments[-1].end
        arena = Arena(segments, Assignment.of(job.model))
        seeding = Seeding.of(job.model, job.data.seed)
        return LocalRows(arena, placement, index, seeding, dynamic_rows(job, placement, index, segments))

    def export(self, folder: Path, key: str, since: str | None = None) -> Path:
        """Export an anchor into a folder, and return that."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(model_folder, "load_anchor", self.load)
            store = open_store(self.job.snapshots.store, None, None)
            model_folder.export_model(store, self.job, ExportRequest(key, since=since), folder)
        return folder


def with_ttl(job: JobSpec, ttl_steps: int) -> JobSpec:
    """Return a job whose users expire after another number of steps."""
    tables = list(job.model.tables)
    tables[USER] = replace(tables[USER], dynamic=DynamicSpec(ttl_steps=ttl_steps))
    return replace(job, model=replace(job.model, tables=tuple(tables)))
