"""An anchor read by shards of another job: rows go where the same name has them, bit for bit with their state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cpr_contract import CONTRACT_VERSION
from cpr_contract.manifests import DenseManifest, ManifestRef, SavedModel, SavedTable
from cpr_contract.model import SparseOptimizerSpec, TableSpec
from cpr_contract.spec import ByNameSpec, JobSpec, TableSourceSpec
from cpr_trainer.arrays import Floats
from cpr_trainer.checkpoint.anchor.committer import commit_anchor
from cpr_trainer.checkpoint.format.documents import DamagedError, LayoutError
from cpr_trainer.checkpoint.restore.lineage import Candidate
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.embedding.bfloat16 import narrow, widen
from support.memory_store import MemoryStore
from support.saves import ShardBench, same

#: By table and row: the vector, and the optimizer's state.
Rows = dict[tuple[str, int], tuple[bytes, bytes]]

ADAM = SparseOptimizerSpec("Adam", 0.1)
OLD = (
    TableSpec("users", 300),
    TableSpec("pages", 170, optimizer=ADAM),
    TableSpec("shops", 90, dim=2, ids="RowNumber"),
    TableSpec("gone", 40),
)
NEW = (
    TableSpec("cities", 50, dim=2),
    TableSpec("sites", 170, optimizer=ADAM),
    TableSpec("users", 300),
    TableSpec("shops", 90, dim=2, ids="RowNumber"),
)
RULES = ByNameSpec("Initialise", "Ignore", map=(TableSourceSpec("sites", "pages"),))


def job_of(job: JobSpec, tables: tuple[TableSpec, ...], seed: int, snapshots: dict[str, Any]) -> JobSpec:
    return replace(
        job,
        model=replace(job.model, tables=tables),
        data=replace(job.data, seed=seed),
        snapshots=replace(job.snapshots, **snapshots),
    )


def benches(
    store: MemoryStore, shards: int, tables: tuple[TableSpec, ...], seed: int = 1, **snapshots: Any
) -> list[ShardBench]:
    return [
        ShardBench(store, shards=shards, index=index, alter=lambda job: job_of(job, tables, seed, snapshots))
        for index in range(shards)
    ]


def model_of(job: JobSpec) -> SavedModel:
    model = job.model
    parts = zip(model.tables, model.table_dims, model.table_optimizers, strict=True)
    tables = (
        SavedTable(table.name, table.rows, dim, kind.kind, table.id_scheme, precision=table.precision)
        for table, dim, kind in parts
    )
    return SavedModel(job.data.seed, tuple(tables), "SGD", ())


def commit(store: MemoryStore, bench: ShardBench, *refs: ManifestRef, with_model: bool = True) -> str:
    """Return the key of an anchor of these saves, with or without the model."""
    job = bench.job
    model = model_of(job) if with_model else None
    meta = DenseManifest(
        CONTRACT_VERSION, "uid", 1, 1, 20, 1280, 6400, bench.layout, (), ids=job.model.table_ids, model=model
    )
    return commit_anchor(store, meta, {"dense": torch.zeros(1)}, refs, ((),) * len(refs)).key


def anchored(store: MemoryStore, shards: int, tables: tuple[TableSpec, ...] = OLD, **save: Any) -> tuple[str, Rows]:
    """An anchor based on other saves, and its rows; most of them never changed."""
    found = benches(store, shards, tables)
    for bench in found:
        bench.change(*range(0, len(bench.arena), 3), by=1.0 + bench.index)
        bench.save(10)
        bench.change(*range(0, len(bench.arena), 4), by=2.0)
    refs = tuple(bench.save(20, bench.links, **save).ref for bench in found)
    key = commit(store, found[0], *refs)
    return key, dict(each for bench in found for each in rows_in(bench, bench.local))


def rows_in(bench: ShardBench, local: LocalRows) -> Iterator[tuple[tuple[str, int], tuple[bytes, bytes]]]:
    tables = bench.job.model.tables
    widths = [
        {"Adam": 2 * dim}.get(optimizer.kind, 1)
        for dim, optimizer in zip(bench.job.model.table_dims, bench.job.model.table_optimizers, strict=True)
    ]
    for chunk in local.placement.rows_of(bench.index):
        for slot, table, row in zip(
            range(chunk.first_slot, chunk.first_slot + len(chunk.rows)), chunk.tables, chunk.rows, strict=True
        ):
            ((segment, inside),) = local.arena.parted(np.array([slot]))
            state: Floats = segment.state[inside][0]
            assert not state[widths[table] :].any(), "only the state of the optimizer is kept"
            yield (tables[table].name, int(row)), (segment.rows[inside].tobytes(), state[: widths[table]].tobytes())


def taken(children: list[ShardBench]) -> Rows:
    """Return the rows of all shards of a job started from the anchor. Its own saves must hold them."""
    found: Rows = {}
    for bench in children:
        (only,) = bench.choices(1)
        restored, local = bench.restore(only)
        assert (only.kind, restored.step, restored.samples, restored.chain) == ("RestoreFrom", 0, 0, ())
        mine = dict(rows_in(bench, local))
        bench.go_on(restored, local)
        assert bench.arena.epochs.now == 2, "later changes are told apart from loaded rows"
        saved = bench.save(5, job_uid="child")
        _, again = bench.restore(Candidate("Save", bench.layout, 5, (saved.ref,)))
        assert dict(rows_in(bench, again)) == mine
        found |= mine
    return found


def first_values(tables: tuple[TableSpec, ...], seed: int) -> Rows:
    (bench,) = benches(MemoryStore(), 1, tables, seed)
    bench.arena.epochs.clear()
    bench.local.arena.segments[0].state[:] = 0
    bench.arena.seed(bench.placement, 0, bench.local.seeding)
    return dict(rows_in(bench, bench.local))


@pytest.mark.parametrize(("before", "after"), [(1, 1), (3, 2), (2, 3)])
@pytest.mark.parametrize("seed", [1, 2])
def test_tables_are_taken_renamed_left_out_and_added(before: int, after: int, seed: int) -> None:
    store = MemoryStore()
    key, old = anchored(store, before)
    found = taken(benches(store, after, NEW, seed, restore_from=key, by_name=RULES))
    fresh = first_values(NEW, seed)
    expected = {
        (name, row): fresh[name, row] if name == "cities" else old["pages" if name == "sites" else name, row]
        for name, row in fresh
    }
    assert found == expected


@pytest.mark.parametrize("by_name", [None, ByNameSpec()])
@pytest.mark.parametrize("seed", [1, 2])
def test_same_tables_are_taken_with_rows_that_never_changed(by_name: ByNameSpec | None, seed: int) -> None:
    store = MemoryStore()
    key, old = anchored(store, 4)
    children = benches(store, 4, OLD, seed, restore_from=key, by_name=by_name)
    assert [len(bench.choices(1)[0].saves) for bench in children] == [1] * 4, "each shard reads its own save alone"
    assert taken(children) == old


@pytest.mark.parametrize("seed", [1, 2])
def test_anchor_without_a_recorded_seed_is_read_as_one_of_the_same_seed(seed: int) -> None:
    store = MemoryStore()
    (bench,) = benches(store, 1, OLD)
    bench.change(0, 5, 7)
    key = commit(store, bench, bench.save(10).ref, with_model=False)
    (child,) = benches(store, 1, OLD, seed, restore_from=key)
    _, local = child.restore(child.choices(1)[0])
    assert same(child.values(local), bench.values()) == (seed == 1)


@pytest.mark.parametrize("shops", [120, 30])
def test_resized_table_repeats_its_rows_and_a_numbered_one_has_its_first_and_new_ones(shops: int) -> None:
    store = MemoryStore()
    key, old = anchored(store, 2)
    tables = (TableSpec("users", 900), TableSpec("shops", shops, dim=2, ids="RowNumber"))
    rules = ByNameSpec("Fail", "Ignore", "Rehash", (TableSourceSpec("shops", "shops", "Truncate"),))
    found = taken(benches(store, 3, tables, 2, restore_from=key, by_name=rules))
    assert {row: found["users", row] for row in range(900)} == {row: old["users", row % 300] for row in range(900)}
    fresh = first_values(tables, 2)
    expected = {row: (old if row < 90 else fresh)["shops", row] for row in range(shops)}
    assert {row: found["shops", row] for row in range(shops)} == expected


def in_bf16(*names: str) -> tuple[TableSpec, ...]:
    """Return the tables of the anchor, some of them in bf16."""
    return tuple(replace(table, precision="bf16") if table.name in names else table for table in OLD)


def test_float32_is_rounded_to_nearest_for_a_table_in_bf16() -> None:
    store = MemoryStore()
    key, old = anchored(store, 2)
    found = taken(benches(store, 3, in_bf16("users", "shops"), 2, restore_from=key, by_name=ByNameSpec()))
    for (name, row), (vector, state) in old.items():
        expected = vector
        if name in {"users", "shops"}:
            expected = narrow(np.frombuffer(vector, np.float32)).tobytes()
        assert found[name, row] == (expected, state)


def test_bf16_is_exact_in_a_table_in_float32() -> None:
    store = MemoryStore()
    key, old = anchored(store, 2, in_bf16("users", "pages"))
    found = taken(benches(store, 3, in_bf16("pages"), 2, restore_from=key, by_name=ByNameSpec()))
    for (name, row), (vector, state) in old.items():
        expected = widen(np.frombuffer(vector, np.uint16)).tobytes() if name == "users" else vector
        assert found[name, row] == (expected, state)


def test_quantised_saves_are_read_as_by_the_same_tables() -> None:
    store, again = MemoryStore(), MemoryStore()
    key, _ = anchored(store, 2, bits=8)
    again.objects.update(store.objects)
    whole = taken(benches(store, 2, OLD, restore_from=key))
    found = taken(benches(again, 3, NEW, restore_from=key, by_name=RULES))
    assert all(found["users", row] == whole["users", row] for row in range(300))


def test_an_anchor_that_lacks_a_shards_save_is_damaged() -> None:
    store = MemoryStore()
    found = benches(store, 2, OLD)
    refs = tuple(bench.save(20).ref for bench in found)
    key = commit(store, found[0], *refs[::-1])
    (bench,) = benches(store, 1, NEW, restore_from=key, by_name=RULES)
    with pytest.raises(DamagedError, match="holds places"):
        bench.restore(bench.choices(1)[0])


def test_an_anchor_of_a_version_that_did_not_name_tables_is_refused() -> None:
    store = MemoryStore()
    (bench,) = benches(store, 1, OLD)
    key = commit(store, bench, bench.save(20).ref, with_model=False)
    (child,) = benches(store, 1, NEW, restore_from=key, by_name=RULES)
    with pytest.raises(LayoutError, match="by a version that did not record tables"):
        child.choices(1)
