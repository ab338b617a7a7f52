"""The assignment of parts: each in one stripe of k + 1 shards, with even load, for all S and k."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from cpr_trainer.embedding.placement import Placement
from cpr_trainer.parity.coding import Parts, Ring
from support.parity_ring import banded_job, needed

RINGS = [Ring(shards, k) for shards in range(2, 19) for k in range(1, min(shards, 9))]


@pytest.mark.parametrize("ring", RINGS, ids=str)
def test_part_is_in_one_stripe_of_different_shards(ring: Ring) -> None:
    seen = set()
    for holder in range(ring.shards):
        members = ring.members(holder)
        assert len({holder, *members}) == ring.data_shards + 1
        for part, member in enumerate(members):
            assert ring.holder(member, part) == holder
            seen.add((member, part))
    assert len(seen) == ring.shards * ring.data_shards
    for shard in range(ring.shards):
        assert len(set(ring.holders(shard))) == ring.data_shards
        assert len(needed(ring, shard)) <= 2 * ring.data_shards - 1


@pytest.mark.parametrize("ring", RINGS, ids=str)
def test_shards_more_than_k_apart_can_both_be_rebuilt(ring: Ring) -> None:
    for one, other in combinations(range(ring.shards), 2):
        apart = min(other - one, one + ring.shards - other)
        both = other not in needed(ring, one) and one not in needed(ring, other)
        assert both == (apart > ring.data_shards)


@pytest.mark.parametrize(("shards", "data_shards"), [(1, 1), (4, 4), (3, 0), (2, -1)])
def test_parity_needs_more_shards_than_it_has_members(shards: int, data_shards: int) -> None:
    with pytest.raises(ValueError, match="needs more of them"):
        Ring(shards, data_shards)


@pytest.mark.parametrize("shards", [2, 3, 7])
@pytest.mark.parametrize("data_shards", [1, 2, 5])
def test_parts_divide_each_shard_and_each_segment(shards: int, data_shards: int) -> None:
    placement = Placement.of(banded_job(shards).model, shards)
    parts = Parts.of(placement, data_shards)
    for shard in range(shards):
        for segment, rows in enumerate(placement.sizes(shard)):
            spans = [parts.span(part, segment, rows) for part in range(data_shards)]
            found = np.concatenate([np.arange(*span) for span in spans])
            assert np.array_equal(found, np.arange(rows))
            assert all(0 <= end - first <= parts.sizes[segment] for first, end in spans)
