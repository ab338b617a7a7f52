"""Dynamic tables that start from another job's anchor: entries with their rows and state, on any number of shards."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from cpr_contract import CONTRACT_VERSION
from cpr_contract.manifests import DenseManifest, ManifestRef
from cpr_contract.model import PAGE_SLOTS, DynamicSpec, SparseOptimizerSpec, TableSpec
from cpr_contract.pinned_data import vocabulary_key
from cpr_contract.spec import ByNameSpec, JobSpec, TableSourceSpec
from cpr_trainer.checkpoint.anchor.committer import commit_anchor
from cpr_trainer.checkpoint.format.documents import DamagedError
from cpr_trainer.checkpoint.format.records import write_vocabularies
from cpr_trainer.checkpoint.restore.by_name import with_vocabularies
from cpr_trainer.checkpoint.restore.lineage import Candidate
from cpr_trainer.embedding.bfloat16 import narrow
from cpr_trainer.embedding.dynamic.entries import ENTRY_COLUMNS, Entries, Rules
from cpr_trainer.embedding.segments import initial_rows
from cpr_trainer.model.replica import saved_model
from cprjob_serving.hashes import Cells, xxh64
from cprjob_serving.vocabulary import Vocabulary
from support.dynamic_shards import DynamicShard, draw_ids, with_dynamic_tables
from support.dynamic_steps import universe
from support.memory_store import MemoryStore
from support.reference_table import Entry, Outcome, ReferenceTable
from support.saves import ShardBench

STEP = 12
ADAM = SparseOptimizerSpec("Adam", 0.1)
OLD_RULES = DynamicSpec(min_steps=2, score="Pushes", halving_steps=4, ttl_steps=3)
#: Rules of the new job: entries never expire, or later than in the old one.
FOREVER, LATER = DynamicSpec(min_steps=1, score="Pushes", halving_steps=4), DynamicSpec(min_steps=2, ttl_steps=5)
SHARDS = [(1, 1), (1, 3), (3, 2)]
MAP = (TableSourceSpec("renamed", "b"),)


@dataclass(frozen=True)
class Held:
    """An entry; the slot is counted over all shards."""

    slot: int
    step: int
    count: int
    row: bytes
    state: bytes


#: By table and key. A key may have an expired entry as well.
Entries_ = list[tuple[tuple[str, int], Held]]


def old_job(job: JobSpec) -> JobSpec:
    job = with_dynamic_tables(job, OLD_RULES)
    tables = (replace(each, optimizer=ADAM) if each.name == "b" else each for each in job.model.tables)
    return replace(job, model=replace(job.model, tables=tuple(tables)))


def new_job(rules: DynamicSpec, pages: int, **snapshots: Any) -> Callable[[JobSpec], JobSpec]:
    """The tables in another order, with another seed: one has another name, one is missing, and one is new."""

    def alter(job: JobSpec) -> JobSpec:
        a, b, _, d = old_job(job).model.tables
        b = replace(b, name="renamed", rows=pages * PAGE_SLOTS - 7, dynamic=rules)
        d = replace(d, rows=pages * PAGE_SLOTS, dynamic=rules)
        model = replace(job.model, tables=(d, TableSpec("new", 20, dim=3), a, b))
        data = replace(job.data, seed=job.data.seed + 1)
        snapshots_spec = replace(job.snapshots, **snapshots)
        return replace(job, model=model, data=data, snapshots=snapshots_spec, sparse_updates="PerStep")

    return alter


def benches(store: MemoryStore, shards: int, alter: Callable[[JobSpec], JobSpec]) -> list[ShardBench]:
    return [ShardBench(store, shards=shards, index=index, alter=alter) for index in range(shards)]


def commit(
    store: MemoryStore, found: list[ShardBench], refs: tuple[ManifestRef, ...], **vocabularies: Vocabulary
) -> str:
    """Return the key of an anchor of these saves."""
    job = found[0].job
    meta = DenseManifest(CONTRACT_VERSION, "uid", 1, 1, STEP, 1280, 6400, found[0].layout, (), ids=job.model.table_ids)
    model = with_vocabularies(saved_model(job.model, job.data.seed, ()), vocabularies)
    return commit_anchor(store, replace(meta, model=model), {"dense": torch.zeros(1)}, refs, ((),) * len(refs)).key


def anchored(store: MemoryStore, shards: int) -> tuple[str, Entries_]:
    """An anchor based on other saves, and its entries."""
    found = benches(store, shards, old_job)
    for first, last in ((1, 7), (8, 9), (10, STEP)):
        for bench in found:
            shard = DynamicShard(bench.job, bench.local)
            for step in range(first, last + 1):
                shard.take_step(step, [draw_ids(10 * step + rank, universe()[::3], 100) for rank in range(2)], step)
            bench.save(last, bench.links)
    return commit(store, found, tuple(bench.links[-1].ref for bench in found)), [*held_by(found)]


def held_by(found: list[ShardBench]) -> Iterator[tuple[tuple[str, int], Held]]:
    for bench in found:
        for band in bench.local.dynamic:
            segment = bench.arena.segments[band.band]
            entries = Entries(segment.state)
            for slot in np.flatnonzero(entries.counts).tolist():
                page, inside = divmod(slot, PAGE_SLOTS)
                table, place = int(band.pages.tables[page]), band.pages.first + page
                yield (
                    (bench.job.model.tables[band.tables[table]].name, int(entries.keys[slot])),
                    Held(
                        int(band.pages.order.numbers[place]) * PAGE_SLOTS + inside,
                        int(entries.steps[slot]),
                        int(entries.counts[slot]),
                        segment.rows[slot].tobytes(),
                        np.ascontiguousarray(segment.state[slot, :-ENTRY_COLUMNS]).tobytes(),
                    ),
                )


def started(store: MemoryStore, shards: int, alter: Callable[[JobSpec], JobSpec]) -> list[ShardBench]:
    """Return the shards of a job that started from the anchor. Their own saves hold the same."""
    children = benches(store, shards, alter)
    for bench in children:
        (only,) = bench.choices(1)
        restored, local = bench.restore(only)
        assert (only.kind, restored.step, restored.chain) == ("RestoreFrom", 0, ())
        bench.go_on(restored, local)
        saved = bench.save(5, job_uid="child")
        _, again = bench.restore(Candidate("Save", bench.layout, 5, (saved.ref,)))
        before, after = (DynamicShard(bench.job, each).contents() for each in (local, again))
        assert after == before
        for table in local.dynamic:
            segment, entries = local.arena.segments[table.band], table.entries.entries
            changed = local.arena.epochs.ever_changed(np.arange(segment.first, segment.end))
            assert not entries.counts[~changed].any()
            assert not np.asarray(segment.rows)[~changed].any(), "empty slots have no first values"
            if table.cell_band is not None:
                assert not local.arena.segments[table.cell_band].state.any(), "no key is counted before its admission"
    return children


def survivors(old: Entries_, rules: Rules) -> dict[tuple[str, int], Held]:
    """Return the newest entries of the anchor's keys that have not expired by a job's rules, by its table and key."""
    reference = ReferenceTable(1, rules)
    return {
        ({"b": "renamed"}.get(name, name), key): each
        for (name, key), each in sorted(old, key=lambda item: item[1].step)
        if not reference.is_over(each.step, STEP)
    }


def begun(key: int, each: Held, rules: Rules) -> Held:
    """Return an entry of the anchor as that of a job's first step."""
    count = ReferenceTable(1, rules).count_at(Entry(key, each.step, each.count), STEP)
    return replace(each, step=1, count=max(1, count))


@pytest.mark.parametrize(("before", "after"), SHARDS)
@pytest.mark.parametrize("spec", [FOREVER, LATER])
def test_entries_keep_their_slots_in_as_many_pages(before: int, after: int, spec: DynamicSpec) -> None:
    store, rules = MemoryStore(), Rules.of(spec)
    key, old = anchored(store, before)
    taken = survivors(old, rules)
    assert len(taken) < sum(not ReferenceTable(1, rules).is_over(each.step, STEP) for _, each in old), (
        "keys that came back have an expired entry as well"
    )
    by_name = ByNameSpec("Initialise", "Ignore", map=MAP)
    found = [*held_by(started(store, after, new_job(spec, 4, restore_from=key, by_name=by_name)))]
    assert len(dict(found)) == len(found)
    assert dict(found) == {of: begun(of[1], each, rules) for of, each in taken.items()}


@pytest.mark.parametrize(("before", "after"), SHARDS)
@pytest.mark.parametrize("spec", [FOREVER, LATER])
@pytest.mark.parametrize("pages", [1, 3, 9])
def test_entries_enter_another_capacity_by_falling_score(
    before: int, after: int, spec: DynamicSpec, pages: int, caplog: pytest.LogCaptureFixture
) -> None:
    store, rules = MemoryStore(), Rules.of(spec)
    key, old = anchored(store, before)
    by_name = ByNameSpec("Initialise", "Ignore", "Rehash", MAP)
    with caplog.at_level(logging.WARNING):
        children = started(store, after, new_job(spec, pages, restore_from=key, by_name=by_name))
    expected, references = (
        dict[tuple[str, int], Held](),
        {name: ReferenceTable(pages, rules) for name in ("d", "renamed")},
    )
    taken = survivors(old, rules)
    scored = ((references[of[0]].score(Entry(of[1], each.step, each.count), STEP), of) for of, each in taken.items())
    for _, (name, number) in sorted(scored, key=lambda item: (-item[0], item[1])):
        entries = references[name].entries
        slot = references[name].slot_for(number, STEP, set(entries), Outcome())
        if slot is not None:
            entries[slot] = Entry(number, STEP, 1)
            expected[name, number] = replace(begun(number, taken[name, number], rules), slot=slot)
    assert dict(held_by(children)) == expected
    dropped = [int(found[1]) for found in re.finditer(r"drops (\d+) of", caplog.text)]
    assert sum(dropped) == len(taken) - len(expected)
    assert dropped or pages > 1


@pytest.mark.parametrize(("before", "after"), SHARDS)
def test_entries_of_a_job_with_the_same_tables_begin_anew(before: int, after: int) -> None:
    store, rules = MemoryStore(), Rules.of(OLD_RULES)
    key, old = anchored(store, before)

    def alter(job: JobSpec) -> JobSpec:
        data, snapshots = replace(job.data, seed=job.data.seed + 1), replace(job.snapshots, restore_from=key)
        return replace(old_job(job), data=data, snapshots=snapshots)

    found = {
        ({"b": "renamed"}.get(name, name), key): each for (name, key), each in held_by(started(store, after, alter))
    }
    assert found == {of: begun(of[1], each, rules) for of, each in survivors(old, rules).items()}


VALUES = Vocabulary.of(b"".join(b"shop %d\n" % value for value in range(50)))
NUMBERED = (
    TableSpec("pages", 300, optimizer=ADAM, ids="RowNumber"),
    TableSpec("shops", 60, ids="Vocabulary", vocabulary="values"),
    TableSpec("users", 40),
)
KEYED = (
    TableSpec("users", 40),
    TableSpec("shops", 2 * PAGE_SLOTS, ids="Dynamic", precision="bf16", dynamic=DynamicSpec(ttl_steps=2), hash_seed=5),
    TableSpec("pages", PAGE_SLOTS + 1, optimizer=ADAM, ids="Dynamic", dynamic=DynamicSpec(min_steps=3)),
)


def key_of(name: str, row: int) -> int | None:
    """The key of a row's id; None for the row of all ids without a value, and for those that have none yet."""
    if name == "shops" and not 1 <= row <= len(VALUES):
        return None
    text, seed = (b"shop %d" % (row - 1), 5) if name == "shops" else (str(row).encode(), 0)
    return int(xxh64(Cells.of([text]), seed)[0])


def numbered_rows(found: list[ShardBench]) -> dict[tuple[str, int], tuple[bytes, bytes]]:
    """Return the rows that ever changed and have a key, as entries: by table and key, vector and state."""
    rows = dict[tuple[str, int], tuple[bytes, bytes]]()
    for bench in found:
        model = bench.job.model
        for chunk in bench.placement.rows_of(bench.index):
            for slot, table, row in zip(
                range(chunk.first_slot, len(bench.arena)), chunk.tables, chunk.rows, strict=False
            ):
                spec = model.tables[table]
                key = key_of(spec.name, int(row))
                if spec.ids != "CPR64" and key is not None and bench.arena.epochs.of[slot]:
                    ((segment, at),) = bench.arena.parted(np.array([slot]))
                    vector = segment.rows[at] if spec.name == "pages" else narrow(segment.read(at))
                    width = 2 * segment.dim if spec.name == "pages" else 1
                    rows[spec.name, key] = vector.tobytes(), segment.state[at, :width].tobytes()
    return rows


def with_tables(tables: tuple[TableSpec, ...], **snapshots: Any) -> Callable[[JobSpec], JobSpec]:
    return lambda job: replace(
        job,
        model=replace(job.model, tables=tables),
        snapshots=replace(job.snapshots, **snapshots),
        sparse_updates="PerStep",
    )


def anchored_numbers(store: MemoryStore, shards: int) -> tuple[str, list[ShardBench]]:
    """An anchor of tables with a row for each id: row 0 of the values is in its saves, the last value is in none."""
    found = benches(store, shards, with_tables(NUMBERED))
    for bench in found:
        bench.change(*np.flatnonzero(bench.numbers % 3 == 0), by=1.0 + bench.index)
        bench.save(10)
        bench.change(*np.flatnonzero(bench.numbers % 4 == 0), by=2.0)
    refs = tuple(bench.save(STEP, bench.links).ref for bench in found)
    write_vocabularies(store, "uid", {"shops": VALUES})
    return commit(store, found, refs, shops=VALUES), found


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (3, 2)])
def test_rows_of_numbers_and_of_values_become_entries(before: int, after: int) -> None:
    store, again = MemoryStore(), MemoryStore()
    key, old = anchored_numbers(store, before)
    again.objects.update(store.objects)
    children = started(store, after, with_tables(KEYED, restore_from=key, by_name=ByNameSpec()))
    found = dict(held_by(children))
    assert {of: (each.row, each.state) for of, each in found.items()} == numbered_rows(old)
    assert {(each.step, each.count) for each in found.values()} == {(1, 1)}
    (alone,) = started(again, 1, with_tables(KEYED, restore_from=key, by_name=ByNameSpec()))
    assert found == dict(held_by([alone])), "in the same slots"
    (band,) = (each for each in alone.local.dynamic if 2 in each.tables)
    of_numbers = [key_of("pages", row) for row in range(300)]
    unchanged = np.array(sorted(key for key in of_numbers if key and ("pages", key) not in found), np.uint64)
    assert len(unchanged)
    first = initial_rows(alone.job.model, alone.job.data.seed, 2, unchanged.view(np.int64))
    assert band.read(band.keys_in(band.place_of(2), unchanged), 1).tolist() == first.tolist()


def test_anchor_without_its_vocabulary_is_damaged() -> None:
    store = MemoryStore()
    key, _ = anchored_numbers(store, 1)
    del store.objects[vocabulary_key("uid", VALUES.digest)]
    (bench,) = benches(store, 1, with_tables(KEYED, restore_from=key, by_name=ByNameSpec()))
    with pytest.raises(DamagedError, match="is missing"):
        bench.restore(bench.choices(1)[0])
