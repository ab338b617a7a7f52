"""Places of keys are arithmetic that saved tables depend on, and shards divide pages whatever their number."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cpr_trainer.embedding.dynamic.pages import PAGE_BUCKETS, Pages, tags_of

KEYS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50, unique=True)


def test_places_never_change() -> None:
    # docs/adr/0046-dynamic-tables.md states them; the keys are XXH64 of `user-1234567890` and `42`, with the seed 0.
    keys = np.array([0x3453BC7F0F355B70, 0x6DE6F5D076D742B9], np.uint64)
    pages = Pages.of(10_000_000)
    positions = pages.positions(keys)
    assert pages.total == 2442
    assert [hex(each) for each in positions.tolist()] == ["0x1f326c41407", "0x4185d24d68d"]
    assert pages.buckets(keys, positions).tolist() == [[63984, 134201], [63909, 134160]]
    assert tags_of(keys).tolist() == [30, 237]


@given(KEYS, st.integers(1, 2**31 - 1), st.integers(1, 9))
def test_each_key_has_two_buckets_on_one_shard(keys: list[int], rows: int, shards: int) -> None:
    found = np.array(sorted(keys), np.uint64)
    whole = Pages.of(rows)
    positions = whole.positions(found)
    assert positions.tolist() == [key * whole.total >> 32 for key in sorted(keys)]
    buckets = whole.buckets(found, positions)
    assert (buckets // PAGE_BUCKETS == (positions >> np.uint64(32)).astype(np.int64)).all()
    assert (buckets[0] != buckets[1]).all()
    parts = [Pages.of(rows, shards, shard) for shard in range(shards)]
    assert [each.first for each in parts[1:]] == [each.last for each in parts[:-1]]
    for each in parts:
        mine = found[(positions >> np.uint64(32) >= each.first) & (positions >> np.uint64(32) < each.last)]
        shifted = each.buckets(mine, each.positions(mine)) + each.first * PAGE_BUCKETS
        assert shifted.tolist() == buckets[:, np.isin(found, mine)].tolist()


def test_tags_leave_zero_to_empty_slots() -> None:
    assert tags_of(np.arange(3, dtype=np.uint64) << np.uint64(23)).tolist() == [1, 1, 2]
