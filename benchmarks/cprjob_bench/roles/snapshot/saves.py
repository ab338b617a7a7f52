"""The saves of the bench: rows of training steps, the shard that writes saves, and the size of one save."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cpr_contract import CONTRACT_VERSION
from cpr_contract.choices import Bits, Strategy
from cpr_contract.manifests import ShardManifest
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Floats
from cpr_trainer.checkpoint.write.save import SavedShard
from cpr_trainer.checkpoint.write.writer import Writer
from cpr_trainer.embedding.access import find_access
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.embedding.capture import Capture
from cpr_trainer.embedding.placement import Placement, layout_hash
from cpr_trainer.embedding.priority import Tracker, make_tracker, population_of
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.runtime import BadSpecError
from cpr_trainer.store import Store
from cprjob_bench.bench_documents import Cut

#: Ids of a step: one of several shards' part of a batch of some thousands.
STEP_IDS = 4096


def step_rows(placement: Placement, rng: np.random.Generator) -> UniqueRows:
    """Return the distinct rows of one step. Their ranks follow Zipf's law with exponent 1, truncated to the table."""
    rows = placement.total
    ranks = np.exp(rng.random(STEP_IDS) * math.log(rows + 1)).astype(np.int64) - 1
    return find_access(placement, np.minimum(ranks, rows - 1)[:, np.newaxis]).unique


def gradients_for(rows: UniqueRows, dim: int) -> Floats:
    """Return small gradients that differ from row to row, float32 [u, dim]."""
    scale = (rows.places % 97 + 1).astype(np.float32) * np.float32(1e-4)
    return np.repeat(scale[:, np.newaxis], dim, axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class BenchShard:
    """The one shard of a job, its store, and its writer of saves. Each row has its first value."""

    job: JobSpec
    store: Store
    local: LocalRows
    writer: Writer

    @classmethod
    def of(cls, job: JobSpec, store: Store) -> BenchShard:
        """Return the shard, with a writer without a rate limit."""
        local = LocalRows.of(job, Placement.of(job.model, 1), 0)
        local.arena.seed(local.placement, 0, local.seeding)
        return cls(job, store, local, Writer(store, local.arena))

    @property
    def table_bytes(self) -> int:
        """Bytes of rows and optimizer state."""
        return sum(len(segment) * segment.row_bytes for segment in self.local.arena.segments)

    def save(self, capture: Capture, step: int, **draft: Any) -> SavedShard:
        """Write and commit the rows of `capture` as the save of `step`; `draft` are fields of its manifest."""
        manifest = replace(
            ShardManifest(
                contract=CONTRACT_VERSION,
                job_uid=self.job.job_uid,
                generation=1,
                index=0,
                incarnation=1,
                kind="Anchor",
                step=step,
                samples=step,
                layout=layout_hash(self.job.model),
                first_place=0,
                places=self.local.placement.total,
                applied=(step,),
                lost=(),
            ),
            **draft,
        )
        return self.writer.commit(self.writer.write(manifest, capture))

    def stored(self) -> dict[str, int]:
        """Return the objects of all present saves, with their sizes in bytes."""
        return {entry.key: entry.size_bytes for entry in self.store.list(f"{self.job.job_uid}/")}

    def clear(self) -> None:
        """Delete all saves."""
        self.store.delete(self.stored())


def delete_all(store: Store, job_uid: str) -> None:
    """Delete all objects with the prefix `job_uid`."""
    store.delete([entry.key for entry in store.list(job_uid)])


class TrainedShard:
    """A shard that was saved, and then trained with each strategy's tracker. Saves of all strategies follow it.

    `Full` saves all rows that have changed since; another strategy saves the portion `snapshots.fraction` of the rows
    that it ranks as most important. Training draws as many ids as there are rows.
    """

    def __init__(self, shard: BenchShard, strategies: Sequence[Strategy]) -> None:
        self._shard = shard
        arena, rng = shard.local.arena, np.random.default_rng(2)
        population = population_of(shard.local.placement, 0)
        self._quota = population.quota(shard.job.snapshots.fraction)
        self._since = arena.epochs.end()
        self._trackers: dict[Strategy, Tracker] = {}
        for strategy in strategies:
            if strategy != "Full":
                try:
                    self._trackers[strategy] = make_tracker(strategy, arena, population, self._quota, rng)
                except ValueError as error:
                    raise BadSpecError(str(error), "Or leave this strategy out.") from error
        self._train(rng)

    def tracker_bytes(self, strategy: Strategy) -> int:
        """Return the memory of a strategy's tracker; 0 for `Full`."""
        tracker = self._trackers.get(strategy)
        return 0 if tracker is None else tracker.memory_bytes

    def cuts(self, strategy: Strategy, bits: Sequence[Bits]) -> Iterator[Cut]:
        """Save the rows of a strategy, once for each width. Raises StoreError."""
        chosen = self._choose(strategy)
        for step, width in enumerate(bits, start=1):
            kind: Literal["Anchor", "Priority"] = "Anchor" if chosen is None else "Priority"
            started_s = time.perf_counter()
            saved = self._shard.save(self._capture(chosen), step, kind=kind, bits=width)
            wall_s = time.perf_counter() - started_s
            yield Cut(strategy, width, saved.manifest.rows, sum(self._shard.stored().values()), wall_s)
            self._shard.clear()

    def _train(self, rng: np.random.Generator) -> None:
        arena, placement = self._shard.local.arena, self._shard.local.placement
        for step in range(1, -(-placement.total // STEP_IDS) + 1):
            rows = step_rows(placement, rng)
            arena.apply(rows.places, rows.numbers, gradients_for(rows, arena.rows.shape[1]), step)
            for tracker in self._trackers.values():
                tracker.note(rows.places)

    def _choose(self, strategy: Strategy) -> NDArray[np.int64] | None:
        """Return the slots that a strategy saves, int64 [k]; None for all changed ones."""
        if strategy == "Full":
            return None
        slots = self._trackers[strategy].choose(self._quota).slots
        assert slots is not None  # noqa: S101 -- only an anchor claims all rows
        return slots[self._shard.local.arena.epochs.of[slots] > self._since]

    def _capture(self, chosen: NDArray[np.int64] | None) -> Capture:
        arena = self._shard.local.arena
        return arena.capture_changes(self._since) if chosen is None else arena.capture_rows(chosen)
