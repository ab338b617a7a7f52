"""From an even anchor any number of trainers can go on: no save in it holds more of one rank than of another."""

from __future__ import annotations

import pytest
import torch

from cpr_contract.roster import AnchorRef
from cpr_trainer.checkpoint.anchor.dense import commit_anchor
from cpr_trainer.checkpoint.format.documents import DamagedError
from cpr_trainer.checkpoint.format.records import is_even
from support.job_saves import SHARDS, JobBench
from support.memory_store import MemoryStore


def anchor_of(bench: JobBench, applied: tuple[int, ...]) -> AnchorRef:
    """An anchor of step 4, in which the last shard has applied so many steps of each rank."""
    for shard in bench.shards:
        shard.change(1)
        shard.save(4, applied=applied if shard is bench.shards[-1] else (4, 4))
    refs = tuple(shard.links[-1].ref for shard in bench.shards)
    return commit_anchor(bench.store, bench.meta(4), {"network": torch.ones(3)}, refs, ((),) * SHARDS)


@pytest.mark.parametrize(("applied", "even"), [((4, 4), True), ((4, 5), False), ((5, 5), False), ((3, 4), False)])
def test_an_anchor_is_even_if_all_ranks_stand_at_its_step(applied: tuple[int, ...], even: bool) -> None:  # noqa: FBT001
    bench = JobBench(MemoryStore())
    assert is_even(bench.store, anchor_of(bench, applied)) == even


def test_one_whose_saves_are_damaged_is_not_believed() -> None:
    store = MemoryStore()
    bench = JobBench(store)
    anchor = anchor_of(bench, (4, 4))
    key = bench.shards[0].links[-1].ref.key
    data = store.get(key)
    store.delete([key])
    store.put(key, data + b" ")
    with pytest.raises(DamagedError):
        is_even(store, anchor)
