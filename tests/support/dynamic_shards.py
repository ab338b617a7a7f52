"""Jobs with dynamic tables, and their shards without frames: merged steps on arenas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cpr_contract.model import DynamicSpec, TableSpec
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.access import find_access
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.embedding.merged_rows import BandRows, Contribution, KeyedRows, merge, plan_changes

RULES = DynamicSpec(min_steps=2, score="Pushes", halving_steps=4, ttl_steps=6)


def with_dynamic_tables(job: JobSpec, rules: DynamicSpec = RULES, *, pages: int = 4) -> JobSpec:
    """The job with tables of two dims: `a` is static, `b` dynamic, `c` static, `d` dynamic, in bf16, without cells."""
    tables = (
        TableSpec("a", 40, dim=4),
        TableSpec("b", pages * 4096, dim=3, ids="Dynamic", dynamic=rules),
        TableSpec("c", 30, dim=3),
        TableSpec("d", 4096 * pages - 5, dim=3, ids="Dynamic", dynamic=replace(rules, min_steps=1), precision="bf16"),
    )
    return replace(job, model=replace(job.model, tables=tables), sparse_updates="PerStep")


def draw_ids(seed: int, keys: np.ndarray, samples: int = 60) -> Ints:
    """Ids of a step, int64 [samples, 4]: rows of `a` and `c`, and some of these keys."""
    rng = np.random.default_rng(seed)
    picked = rng.choice(keys.view(np.int64), (2, samples))
    return np.stack((rng.integers(0, 40, samples), picked[0], rng.integers(0, 30, samples), picked[1]), axis=1)


class DynamicShard:
    """A shard of such a job."""

    def __init__(self, job: JobSpec, local: LocalRows) -> None:
        self.job, self.placement, self.index, self.arena = job, local.placement, local.index, local.arena
        self.tables = local.dynamic

    def take_step(self, step: int, ids: Sequence[Ints], seed: int) -> None:
        """Take a step with the ids of each rank. Gradients depend on the row, the rank and the seed."""
        merged = merge([self._contribution(of_rank, seed + rank) for rank, of_rank in enumerate(ids)])
        changes = plan_changes(merged, self.tables, step)
        assert self.arena.apply(changes.slots, changes.numbers, changes.gradients, step, planned=changes.planned)

    def _contribution(self, ids: Ints, seed: int) -> Contribution:
        rows, found = find_access(self.placement, ids).unique, list[BandRows | KeyedRows]()
        of_band = {each.band: each for each in self.tables}
        for band, dim in enumerate(self.job.model.band_dims):
            cell = rows.cells(band)[self.index]
            numbers = rows.numbers[cell]
            mixed = numbers[:, None] * 2654435761 + (np.arange(dim) + seed) * 40503
            gradients = (mixed % 2001 - 1000).astype(np.float32) / np.float32(1000)
            if band in of_band:
                tables = rows.places[cell] - self.placement.starts[self.index] - self.arena.segments[band].first
                keys = of_band[band].pages.locate(numbers.view(np.uint64), tables)
                found.append(KeyedRows(keys, gradients))
            else:
                found.append(BandRows(self.placement.slots_on(self.index, numbers), numbers, gradients))
        return tuple(found)

    def contents(self) -> dict[tuple[int, int], tuple[bytes, bytes]]:
        """The rows that ever changed and their state, by band and row; of cells, too."""
        found = dict[tuple[int, int], tuple[bytes, bytes]]()
        for chunk in self.placement.rows_of(self.index):
            slots = np.arange(chunk.first_slot, chunk.first_slot + len(chunk.rows))
            changed = np.flatnonzero(self.arena.epochs.ever_changed(slots))
            numbers = chunk.rows[changed] + self.placement.offsets[chunk.tables[changed]]
            for segment, at in self.arena.parted(slots[changed]):
                for number, row, state in zip(numbers.tolist(), segment.rows[at], segment.state[at], strict=True):
                    found[chunk.band, number] = row.tobytes(), state.tobytes()
        return found
