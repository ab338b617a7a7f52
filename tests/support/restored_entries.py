"""The entries of a dynamic table, as the shards of a job have them that starts from an anchor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.restore.lineage import dense_start, shard_start
from cpr_trainer.checkpoint.restore.loading import load_shard
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.embedding.dynamic.entries import Entries
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.store import Store


def restored(store: Store, spec: JobSpec, key: str) -> dict[int, tuple[list[float], float, int]]:
    """Row, first value of state and count of each key in the only dynamic table of a job. Lookups find all of them."""
    spec = replace(spec, snapshots=replace(spec.snapshots, restore_from=key))
    placement = Placement.of(spec.model, spec.shards)
    found = dict[int, tuple[list[float], float, int]]()
    for index in range(spec.shards):
        local = LocalRows.of(spec, placement, index)
        load_shard(store, shard_start(store, dense_start(store, spec, None), placement, index), local)
        (table,) = local.dynamic
        segment = local.arena.segments[table.band]
        entries = Entries(segment.state)
        keys = np.sort(entries.keys[np.flatnonzero(entries.counts)])
        slots = table.entries.find(table.keys_in(0, keys), 1)
        assert (slots >= 0).all()
        assert (entries.steps[slots] == 1).all()
        rows, state, counts = segment.read(slots), segment.state[slots, 0], entries.counts[slots]
        for at, each in enumerate(keys.tolist()):
            found[each] = rows[at].tolist(), float(state[at]), int(counts[at])
    return found
