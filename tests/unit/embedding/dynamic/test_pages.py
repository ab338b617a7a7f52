"""Places of keys are arithmetic that saved tables depend on, and shards divide pages whatever their number."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cpr_trainer.embedding.dynamic.pages import PAGE_BUCKETS, BandKeys, PageOrder, Pages, tags_of

KEYS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50, unique=True)


def located(pages: Pages, keys: np.ndarray) -> BandKeys:
    return pages.locate(keys, np.zeros(len(keys), np.int64))


def test_places_never_change() -> None:
    # docs/adr/0046-dynamic-tables.md states them; the keys are XXH64 of `user-1234567890` and `42`, with the seed 0.
    keys = np.array([0x3453BC7F0F355B70, 0x6DE6F5D076D742B9], np.uint64)
    pages = Pages.of(10_000_000)
    found = located(pages, keys)
    assert pages.last == 2442
    assert [hex(each) for each in found.positions.tolist()] == ["0x1f326c41407", "0x4185d24d68d"]
    assert found.buckets().tolist() == [[63984, 134201], [63909, 134160]]
    assert tags_of(keys).tolist() == [30, 237]


def test_order_of_pages_never_changes() -> None:
    order = PageOrder.of([4 * 4096, 1, 3 * 4096, 4096, 4095])
    assert order.tables.tolist() == [1, 0, 2, 3, 0, 2, 0, 0, 2, 4]
    assert order.numbers.tolist() == [0, 0, 0, 0, 1, 1, 2, 3, 2, 0]


@given(KEYS, st.integers(1, 2**31 - 1), st.integers(1, 9))
def test_each_key_has_two_buckets_on_one_shard(keys: list[int], rows: int, shards: int) -> None:
    found = np.array(sorted(keys), np.uint64)
    whole = Pages.of(rows)
    positions = located(whole, found).positions
    assert positions.tolist() == [key * whole.last >> 32 for key in sorted(keys)]
    buckets = located(whole, found).buckets()
    assert (buckets // PAGE_BUCKETS == (positions >> np.uint64(32)).astype(np.int64)).all()
    assert (buckets[0] != buckets[1]).all()
    parts = [Pages.of(rows, shards=shards, shard=shard) for shard in range(shards)]
    assert [each.first for each in parts[1:]] == [each.last for each in parts[:-1]]
    for each in parts:
        mine = found[each.hold(0, found)]
        shifted = located(each, mine).buckets() + each.first * PAGE_BUCKETS
        assert shifted.tolist() == buckets[:, np.isin(found, mine)].tolist()


@given(st.lists(st.integers(1, 40 * 4096), min_size=1, max_size=30), st.integers(1, 9))
def test_shards_have_equal_parts_of_each_table(rows: list[int], shards: int) -> None:
    parts = [Pages.of(*rows, shards=shards, shard=shard) for shard in range(shards)]
    for table, capacity in enumerate(rows):
        pages = [np.flatnonzero(each.tables == table) for each in parts]
        numbers = [each.order.numbers[each.first + at] for each, at in zip(parts, pages, strict=True)]
        assert np.concatenate(numbers).tolist() == [*range(-(-capacity // 4096))], "ascending"
        slots = [each.slots_of(table, np.concatenate(numbers) * 4096) for each in parts]
        assert (np.stack(slots) >= 0).sum() == len(np.concatenate(numbers)), "each page is on one shard"


def test_shards_have_equal_parts_of_small_tables() -> None:
    parts = [Pages.of(*[4096] * 40, *[4096 * 400] * 2, shards=4, shard=shard) for shard in range(4)]
    assert {int(np.isin(each.tables, range(40)).sum()) for each in parts} <= {9, 10, 11}
    assert {int((each.tables == 40).sum()) for each in parts} == {100}


def test_tags_leave_zero_to_empty_slots() -> None:
    assert tags_of(np.arange(3, dtype=np.uint64) << np.uint64(23)).tolist() == [1, 1, 2]
