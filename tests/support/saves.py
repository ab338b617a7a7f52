"""Saves of shards for tests of what writes and reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import call
from pathlib import Path
from typing import Any

import numpy as np

from cpr_contract import CONTRACT_VERSION
from cpr_contract.manifests import RestoreRecord, ShardManifest
from cpr_contract.model import SparseOptimizerSpec
from cpr_contract.roster import AnchorRef, Counters
from cpr_contract.spec import JobSpec
from cpr_trainer import arrays
from cpr_trainer.arrays import Floats
from cpr_trainer.checkpoint.format.parts import Link
from cpr_trainer.checkpoint.restore.lineage import Candidate, candidates
from cpr_trainer.checkpoint.restore.loading import RestoredShard, load_shard
from cpr_trainer.checkpoint.write.save import SavedShard
from cpr_trainer.checkpoint.write.writer import Retry, Writer
from cpr_trainer.embedding.arena import Arena, LocalRows
from cpr_trainer.embedding.capture import Capture
from cpr_trainer.embedding.optimizers import Assignment
from cpr_trainer.embedding.placement import Placement, layout_hash
from cpr_trainer.embedding.segments import Segment
from cpr_trainer.store import Store
from support.shard_job import shard_roster, small_job

#: Rows and their state.
Values = tuple[arrays.Values, Floats]


def write(writer: Writer, manifest: ShardManifest, capture: Capture, retry: Retry = call) -> SavedShard:
    """Write and commit."""
    return writer.commit(writer.write(manifest, capture, retry), retry)


def draft(step: int = 10, **changes: Any) -> ShardManifest:
    """A manifest without parts, of a save at this step."""
    base = ShardManifest(
        contract=CONTRACT_VERSION,
        job_uid="uid",
        generation=1,
        index=0,
        incarnation=1,
        kind="Anchor",
        step=step,
        samples=64 * step,
        layout="layout",
        first_place=0,
        places=1,
        applied=(step, step),
        lost=(),
    )
    return replace(base, **changes)


def full_save(store: Store, manifest: ShardManifest, rows: arrays.Values, state: Floats) -> SavedShard:
    """Save all rows [n, D] and their state [n, W]."""
    arena = Arena([Segment(0, rows, state)], Assignment((len(rows),), (SparseOptimizerSpec("SGD", 0.1),)))
    arena.epochs.note(np.arange(len(rows)))
    return write(Writer(store, arena), replace(manifest, places=len(rows)), arena.capture_changes(0))


def restore_record(incarnation: int, **changes: Any) -> RestoreRecord:
    """The record of an incarnation that started from the generation's start."""
    return replace(RestoreRecord(CONTRACT_VERSION, "uid", 1, 0, incarnation, None, None, 0, 0), **changes)


class ShardBench:
    """One shard of a job over a store: it changes rows, saves them, and restores into another arena."""

    def __init__(  # noqa: PLR0913 -- one of many shards of many jobs
        self,
        store: Store,
        *,
        shards: int = 1,
        index: int = 0,
        rows: tuple[int, ...] = (50, 30),
        dim: int = 4,
        alter: Callable[[JobSpec], JobSpec] = lambda job: job,
    ) -> None:
        self.store = store
        job = alter(small_job(Path("unused"), shards=shards, rows=rows, dim=dim))
        self.job: JobSpec = replace(job, job_uid="uid")
        self.layout = layout_hash(self.job.model)
        self.placement = Placement.of(self.job.model, shards)
        self.index = index
        chunks = list(self.placement.rows_of(index))
        self.numbers = np.concatenate([self.placement.offsets[chunk.tables] + chunk.rows for chunk in chunks])
        self.local = self.new_local()
        self.local.arena.seed(self.placement, index, self.local.seeding)
        self.writer = Writer(store, self.arena)
        self.links: tuple[Link, ...] = ()

    @property
    def arena(self) -> Arena:
        return self.local.arena

    def new_local(self) -> LocalRows:
        """An empty arena, full of something that is not a value of a row."""
        local = LocalRows.of(self.job, self.placement, self.index)
        for segment in local.arena.segments:
            segment.rows.fill(9.0)
            segment.state.fill(9.0)
        return local

    def values(self, local: LocalRows | None = None) -> Values:
        """Rows and state; where there are several segments, flat and one after the other."""
        segments = (local or self.local).arena.segments
        if len(segments) == 1:
            return segments[0].rows.copy(), segments[0].state.copy()
        rows, states = zip(*((segment.rows.ravel(), segment.state.ravel()) for segment in segments), strict=True)
        return np.concatenate(rows), np.concatenate(states)

    def change(self, *slots: int, by: float = 1.0) -> None:
        """Take an optimizer step on some rows."""
        gradients = [np.full_like(rows, by, np.float32) for rows in self.arena.read(np.array(slots))]
        assert self.arena.apply(np.array(slots), self.numbers[list(slots)], gradients, 1)

    def draft(self, step: int, base: tuple[Link, ...] = (), **changes: Any) -> ShardManifest:
        (first, last), *further = self.local.spans
        chain = tuple(link.ref for link in base)
        manifest = draft(step, index=self.index, layout=self.layout, first_place=first, places=last - first)
        manifest = replace(manifest, further=tuple(further))
        return replace(manifest, chain=chain, **changes)

    def save(self, step: int, base: tuple[Link, ...] = (), **changes: Any) -> SavedShard:
        """Save what changed since `base`; it becomes the last of `links`."""
        epoch = self.arena.epochs.now
        capture = self.arena.capture_changes(base[-1].epoch if base else 0)
        saved = write(self.writer, self.draft(step, base, **changes), capture)
        link = Link(saved.ref, epoch, saved.manifest.rows, saved.full_rows)
        self.links = (*base, link)
        return saved

    def save_rows(self, step: int, *slots: int, **changes: Any) -> SavedShard:
        """A priority save of some rows."""
        capture = self.arena.capture_rows(np.array(slots, np.int64))
        return write(self.writer, self.draft(step, kind="Priority", **changes), capture)

    def choices(
        self, incarnation: int = 2, generation: int = 1, anchor: AnchorRef | None = None
    ) -> tuple[Candidate, ...]:
        roster = shard_roster(
            index=self.index, incarnation=incarnation, anchor=anchor, counters=Counters(1, 1, generation)
        )
        return candidates(self.store, self.job, roster, self.placement)

    def restore(self, candidate: Candidate) -> tuple[RestoredShard, LocalRows]:
        """Restore into a new arena."""
        local = self.new_local()
        return load_shard(self.store, candidate, local), local

    def go_on(self, restored: RestoredShard, local: LocalRows) -> None:
        """Be the shard that restored."""
        self.local, self.links = local, restored.chain
        self.writer = Writer(self.store, local.arena)


def same(left: Values, right: Values) -> bool:
    """Bit for bit."""
    return all(np.array_equal(a.view(np.int32), b.view(np.int32)) for a, b in zip(left, right, strict=True))
