"""A table on any number of shards does what the reference does, key after key; planted bugs are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_contract.model import EvictionScore
from cpr_trainer.embedding.dynamic.admission_cells import Count
from cpr_trainer.embedding.dynamic.entries import Rules
from cpr_trainer.embedding.dynamic.insertion import Buckets
from cpr_trainer.embedding.dynamic.pages import BUCKET_SLOTS, BandKeys, Pages
from cpr_trainer.embedding.dynamic.table import Changes, DynamicTables, Update
from cprjob_serving.hashes import U64
from support.dynamic_steps import PAGES, Shards, columns_of, differences, draw_steps, empty_entries, keys_of_first
from support.reference_table import ReferenceTable

RULES = st.builds(
    Rules,
    score=st.sampled_from(get_args(EvictionScore)),
    halving_steps=st.sampled_from([0, 1, 3]),
    ttl_steps=st.sampled_from([0, 1, 2, 5]),
    min_steps=st.sampled_from([1, 2, 3]),
)
SEEDS = st.integers(0, 2**32 - 1)
PRESSURE = Rules("Pushes", halving_steps=4, ttl_steps=6, min_steps=2)


@given(RULES, SEEDS, st.integers(1, PAGES), st.integers(1, 3))
@settings(max_examples=30)
def test_table_does_what_the_reference_does(rules: Rules, seed: int, shards: int, ranks: int) -> None:
    found = differences(Shards(rules, shards), ReferenceTable(PAGES, rules), draw_steps(seed, 8, ranks))
    assert next(found, None) is None


@given(RULES, SEEDS, st.integers(1, PAGES), st.integers(1, PAGES))
@settings(max_examples=20)
def test_replay_on_another_number_of_shards_ends_in_the_same_bytes(
    rules: Rules, seed: int, shards: int, others: int
) -> None:
    steps, calm = draw_steps(seed, 10, 2), Shards(rules, shards)
    for step, contributions in enumerate(steps, 1):
        if step == 6:
            restored = calm.moved(others)
        calm.commit(calm.plan(step, contributions))
    assert restored.columns() != calm.columns()
    for step, contributions in enumerate(steps[5:], 6):
        updates = restored.plan(step, contributions[::-1])
        restored.commit(updates)
        restored.commit(updates)  # the redo record of a killed process
    assert restored.columns() == calm.columns()
    assert restored.find(steps[0][0], 11) == calm.find(steps[0][0], 11)


def test_steps_under_pressure_reach_every_case() -> None:
    shards, seen = Shards(PRESSURE, 2), dict[str, int]()
    for step, contributions in enumerate(draw_steps(7, 30, 2), 1):
        updates = shards.plan(step, contributions)
        for update in updates:
            for name in Changes.__slots__:
                seen[name] = seen.get(name, 0) + int(getattr(update.changes, name).sum())
        shards.commit(updates)
    assert min(seen.values()) > 0, seen


def bug_of_lookups(patch: pytest.MonkeyPatch) -> None:
    find = DynamicTables.find

    def inserting(self: DynamicTables, keys: BandKeys, step: int) -> np.ndarray:
        self.commit(self.plan(step, keys.select(slice(1))))
        return find(self, keys, step)

    patch.setattr(DynamicTables, "find", inserting)


def bug_of_searches(patch: pytest.MonkeyPatch) -> None:
    search = DynamicTables._find_in_buckets

    def first_bucket(self: DynamicTables, keys: BandKeys, least: int) -> np.ndarray:
        found = search(self, keys, least)
        return np.where(found // BUCKET_SLOTS == keys.buckets()[0], found, -1)

    patch.setattr(DynamicTables, "_find_in_buckets", first_bucket)


def bug_of_pins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Buckets, "_pin", lambda *_: None)


def bug_of_counts(patch: pytest.MonkeyPatch) -> None:
    changes = Count.changes
    patch.setattr(Count, "changes", lambda self, placed, step: changes(self, placed, step + 1))


def bug_of_expiry(patch: pytest.MonkeyPatch) -> None:
    oldest = Rules.oldest_live
    patch.setattr(Rules, "oldest_live", lambda self, step: oldest(self, step - 1))


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (bug_of_lookups, "a lookup or a plan changed the table"),
        (bug_of_searches, "lookups"),
        (bug_of_pins, "the plan"),
        (bug_of_counts, "the entries"),
        (bug_of_expiry, "lookups"),
    ],
)
def test_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = draw_steps(7, 12, 2)
    assert next(differences(Shards(PRESSURE, 2), ReferenceTable(PAGES, PRESSURE), steps), None) is None
    plant(monkeypatch)
    first = next(differences(Shards(PRESSURE, 2), ReferenceTable(PAGES, PRESSURE), steps))
    assert first.endswith(found)


def test_key_that_was_found_is_found_without_its_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    table, searched = single(Rules()), list[int]()
    search = DynamicTables._find_in_buckets

    def counted(self: DynamicTables, keys: BandKeys, least: int) -> np.ndarray:
        searched.append(len(keys))
        return search(self, keys, least)

    monkeypatch.setattr(DynamicTables, "_find_in_buckets", counted)
    keys = np.arange(8, dtype=np.uint64) << np.uint64(52)  # each at a place of its own
    for step in (1, 2, 3, 4):
        take(table, step, keys)
    assert searched == [8, 7], "once before their insertion, and once after it; the first slot is every first hint"


def keys_of_one_pair(count: int) -> U64:
    """Keys that have buckets 0 and 1 of the first page."""
    return np.arange(count, dtype=np.uint64) << np.uint64(23)


def single(rules: Rules, rows: int = 4096) -> DynamicTables:
    pages = Pages.of(rows)
    return DynamicTables(pages, rules, empty_entries(pages, rules))


def take(table: DynamicTables, step: int, *contributions: U64) -> Update:
    update = table.plan(step, keys_of_first(table, np.unique(np.concatenate(contributions))))
    table.commit(update)
    return update


def find(table: DynamicTables, keys: U64, step: int) -> list[int]:
    found: list[int] = table.find(keys_of_first(table, keys), step).tolist()
    return found


def test_new_keys_fill_two_buckets_and_evict_the_oldest_with_the_least_key() -> None:
    table, keys = single(Rules()), keys_of_one_pair(70)
    take(table, 1, keys[:63])
    take(table, 2, keys[1:64])
    update = take(table, 3, keys[64:66])
    assert update.evicted.tolist() == [0, 32]
    assert find(table, keys[[0, 1, 2, 64, 65]], 4) == [-1, -1, 1, 0, 32]


def test_step_evicts_no_entry_that_it_pushes() -> None:
    table, keys = single(Rules()), keys_of_one_pair(70)
    take(table, 1, keys[:64])
    update = take(table, 2, keys[:64], keys[64:])
    assert (update.changes.dropped, update.changes.full, update.evicted.tolist()) == ([6], [6], [])
    assert np.sort(update.slots[update.places]).tolist() == list(range(64))
    assert (update.slots[64:] == -1).all()


def test_expired_key_is_a_new_one_to_its_own_push() -> None:
    table, keys = single(Rules("Pushes", ttl_steps=2)), keys_of_one_pair(1)
    take(table, 1, keys)
    assert take(table, 2, keys).counts.tolist() == [2]
    assert find(table, keys, 4) == [0]
    assert find(table, keys, 5) == [-1]
    update = take(table, 5, keys)
    assert (update.inserted.tolist(), update.counts.tolist(), update.changes.expired) == ([True], [1], [1])


def test_key_is_admitted_at_its_second_step() -> None:
    table, keys = single(Rules(min_steps=2)), keys_of_one_pair(1)
    assert take(table, 1, keys).changes.waiting == [1]
    update = take(table, 2, keys)
    assert (update.changes.admitted, update.counts.tolist(), update.contents.tolist()) == ([1], [2], [[0, 0]])


@given(RULES, SEEDS, st.integers(1, 3))
@settings(max_examples=10)
def test_tables_of_a_band_do_what_each_does_alone(rules: Rules, seed: int, shards: int) -> None:
    """Each has some of the same keys in its pages, and another number of them."""
    sizes = (4, 1, 3)
    bands = [Pages.of(*(4096 * size for size in sizes), shards=shards, shard=shard) for shard in range(shards)]
    together = [DynamicTables(pages, rules, empty_entries(pages, rules)) for pages in bands]
    alone = [single(rules, 4096 * size) for size in sizes]
    for step, of_tables in enumerate(draw_steps(seed, 8, len(sizes)), 1):
        keys = [np.sort(each) for each in of_tables]
        updates = []
        for band in together:
            mine = [each[band.pages.hold(table, each)] for table, each in enumerate(keys)]
            tables = np.repeat(np.arange(len(sizes)), [len(each) for each in mine])
            located = band.pages.locate(np.concatenate(mine), tables)
            updates.append(band.plan(step, located))
            found = band.find(located, step)
            for table, each in enumerate(mine):
                slots = alone[table].find(keys_of_first(alone[table], each), step)
                expected = np.where(slots < 0, -1, band.pages.slots_of(table, np.maximum(slots, 0)))
                assert found[tables == table].tolist() == expected.tolist()
        for band, update in zip(together, updates, strict=True):
            band.commit(update)
        for table, (one, each) in enumerate(zip(alone, keys, strict=True)):
            changes = take(one, step, each).changes
            for name in Changes.__slots__:
                assert getattr(changes, name) == sum(getattr(update.changes, name)[table] for update in updates), name
            its_slots = [band.pages.slots_in(table).ravel() for band in together]
            for place, expected in enumerate(columns_of(one.entries)):
                of_shards = [columns_of(band.entries)[place] for band in together]
                parts = [column[at] for column, at in zip(of_shards, its_slots, strict=True) if len(column)]
                assert np.array_equal(np.concatenate([expected[:0], *parts]), expected)
            assert sum(band.occupancy(step)[table] for band in together) == one.occupancy(step)
            assert sum(band.waiting(step)[table] for band in together) == one.waiting(step)


def test_key_of_another_shard_is_refused() -> None:
    pages = Pages.of(8192, shards=2)
    with pytest.raises(ValueError, match="outside pages"):
        pages.locate(np.array([1, 2**63], np.uint64), np.zeros(2, np.int64))


@pytest.mark.parametrize("keys", [[2, 1], [1, 1]])
def test_keys_out_of_order_are_refused(keys: list[int]) -> None:
    with pytest.raises(ValueError, match="ascending"):
        Pages.of(4096).locate(np.array(keys, np.uint64), np.zeros(2, np.int64))
