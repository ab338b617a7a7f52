"""Shards that keep parity for each other, in one process and without sockets; and what their parity has to be."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.segments import Seeding
from cpr_trainer.parity.coding import Image, Parts, Ring, View
from cpr_trainer.parity.flush import Flush, Point
from cpr_trainer.parity.journal import Journal
from cpr_trainer.parity.parity_server import ParityStore
from cpr_trainer.parity.rebuild import ParityUnavailableError, rows_of
from support.row_dims import with_dims, with_precisions
from support.row_optimizers import mixed
from support.shard_job import small_job

#: Size of the flushes of a parity that is rebuilt, in bytes.
FLUSH_BYTES = 900
#: Number of rows that are decoded at a time.
_BLOCK = 7


def banded_job(shards: int) -> JobSpec:
    """Bands of 61 rows of 5 values in bf16 and 12 of 2 in fp32, with optimizers that keep different state."""
    job = mixed(with_dims(small_job(Path("unused"), shards=shards, rows=(50, 12, 11)), 5, 2, 5))
    return with_precisions(job, "bf16", "fp32")


def needed(ring: Ring, shard: int) -> frozenset[int]:
    """Return the shards that a rebuild of this shard reads: its holders, and the members of their stripes."""
    holders = ring.holders(shard)
    return frozenset(holders).union(*map(ring.members, holders)) - {shard}


class Process:
    """One process of a shard: its rows, what parity lacks of them, and the parity that it keeps."""

    def __init__(self, ring: ParityRing, index: int, arena: Arena) -> None:
        self.arena = arena
        self.journal = Journal(arena, ring.parts, ring.fresh())
        self.store = ParityStore(ring.ring.data_shards, ring.shapes, ring.fresh())
        #: Flushes on their way to the holder of each part.
        self.sent = [deque[Flush]() for _ in range(ring.ring.data_shards)]


class ParityRing:
    """`images` are what each part was when a flush of it was sealed, by holder and point."""

    def __init__(self, job: JobSpec, data_shards: int) -> None:
        self.job = job
        self.placement = Placement.of(job.model, job.shards)
        self.ring = Ring(job.shards, data_shards)
        self.parts = Parts.of(self.placement, data_shards)
        self._names = iter(range(1, 1_000_000, 1000))
        self.images: dict[tuple[int, Point], list[Image]] = {}
        self.marks: dict[str, Arena] = {}
        empty = Arena.empty(job, *self.placement.sizes(0))
        self.shapes = self.parts.shapes(empty)
        self.shards = [Process(self, index, self.new_arena(index)) for index in range(job.shards)]
        self._step = 0

    def fresh(self) -> int:
        """A unique name."""
        return next(self._names)

    def new_arena(self, index: int) -> Arena:
        """First values."""
        arena = Arena.empty(self.job, *self.placement.sizes(index))
        arena.seed(self.placement, index, Seeding.of(self.job.model, self.job.data.seed))
        return arena

    def push(self, index: int, rng: np.random.Generator, *, every: bool = False) -> None:
        """A step over some rows of one shard, or every one."""
        shard = self.shards[index]
        self._step += 1
        portion = 1.0 if every else rng.choice([0.05, 0.3, 1.0])
        slots = np.flatnonzero(rng.random(len(shard.arena)) < portion)
        numbers = self.numbers(index)[slots]
        gradients = tuple(rng.standard_normal(rows.shape, np.float32) for rows in shard.arena.read(slots))
        shard.journal.note(slots)
        assert shard.arena.apply(slots, numbers, gradients, self._step)

    def numbers(self, index: int) -> np.ndarray:
        """The number of the row in each slot."""
        found = [self.placement.offsets[chunk.tables] + chunk.rows for chunk in self.placement.rows_of(index)]
        return np.concatenate(found)

    def seal(self, index: int) -> None:
        """The next flush of a shard, unless one is under way."""
        shard = self.shards[index]
        if shard.journal.in_flight:
            return
        mark = f"{index} {shard.journal.author} {shard.journal.number + 1}"
        for part, flush in shard.journal.seal(mark, FLUSH_BYTES).items():
            shard.sent[part].append(flush)
            holder = self.ring.holder(index, part)
            frontier = shard.journal._streams[part]._next_frontier
            self.images[holder, flush.after] = self.part_image(shard.arena, part, frontier)
        self.marks[mark] = copy_of(self, index, shard.arena)

    def part_image(self, arena: Arena, part: int, frontier: Sequence[int]) -> list[Image]:
        """Return the present content of a part, up to a frontier in each segment."""
        found = []
        for segment, shape in enumerate(self.shapes):
            view, image = View.of_part(arena, self.parts, part, segment), Image.zeros(*shape)
            at = view.touched(0, frontier[segment])
            image.rows[at], image.state[at], image.touched[at] = view.rows[at], view.state[at], 1
            found.append(image)
        return found

    def deliver(self, index: int, part: int, *, answered: bool = True) -> None:
        """The holder of a part gets a flush, if one is on its way."""
        shard = self.shards[index]
        if shard.sent[part]:
            self.shards[self.ring.holder(index, part)].store.take(part, shard.sent[part].popleft())
            if answered:
                self.connect(index, part)

    def connect(self, index: int, part: int) -> None:
        """A shard receives the point of a parity, and sends the missing flushes again; flushes under way are lost."""
        shard = self.shards[index]
        shard.sent[part].clear()
        position = self.shards[self.ring.holder(index, part)].store.position(part)
        again = shard.journal.on_position(part, position.point)
        if again is not None:
            shard.sent[part].append(again)

    def connect_all(self, index: int) -> None:
        """A process is new: it and all that have to do with its parity find each other."""
        for part in range(self.ring.data_shards):
            self.connect(index, part)
            self.connect(self.ring.members(index)[part], part)

    def recover(self, index: int) -> str | None:
        """Replace a lost shard by one with the rows that parity has of it; its mark, None if it has not all of them."""
        holders = [self.shards[holder].store for holder in self.ring.holders(index)]
        positions = [store.position(part) for part, store in enumerate(holders)]
        moments = {position.point.moment for position in positions}
        for moment in sorted(moments, key=lambda moment: moment[1]):
            if all(store.undo(part, moment) for part, store in enumerate(holders)):
                break
        else:
            return None
        positions = [store.position(part) for part, store in enumerate(holders)]
        if not all(position.complete for position in positions):
            return None
        arena = self.new_arena(index)
        try:
            self._decode(index, arena, [position.point for position in positions])
        except ParityUnavailableError:
            return None
        self.shards[index] = Process(self, index, arena)
        self.shards[index].journal.adopt([position.point for position in positions], positions[0].mark)
        return positions[0].mark

    def _decode(self, index: int, arena: Arena, points: Sequence[Point]) -> None:
        for part, point in enumerate(points):
            stripe = Neighbours(self, self.ring.holder(index, part))
            for segment, (size, *_) in enumerate(self.shapes):
                for first in range(0, size, _BLOCK):
                    rows = range(first, min(first + _BLOCK, size))
                    image = rows_of(stripe, part, point, segment, rows)
                    View.of_part(arena, self.parts, part, segment).write(first, image)

    def check(self) -> None:
        """XOR over each stripe is the parity at rest, and each member can compute its part in it."""
        for holder, process in enumerate(self.shards):
            expected = [Image.zeros(*shape) for shape in self.shapes]
            for part, point in enumerate(process.store.points):
                if not point.number:
                    continue
                images = self.images[holder, point]
                stream = self.shards[self.ring.members(holder)[part]].journal._streams[part]
                for segment, image in enumerate(images):
                    expected[segment].add(image)
                    found = stream.as_of(point, segment, 0, len(image))
                    assert found is None or same(found, image)
            for segment, image in enumerate(expected):
                assert same(process.store.read(segment, 0, len(image)), image)


class Neighbours:
    """A stripe with all its shards."""

    def __init__(self, ring: ParityRing, holder: int) -> None:
        self._store = ring.shards[holder].store
        self._members = [ring.shards[member].journal for member in ring.ring.members(holder)]

    def parity(self, segment: int, rows: range) -> tuple[Image, Sequence[Point]]:
        return self._store.read(segment, rows.start, rows.stop), self._store.points

    def member(self, part: int, point: Point, segment: int, rows: range) -> Image | None:
        return self._members[part].as_of(part, point, segment, rows)


def same(one: Image, other: Image) -> bool:
    """Return whether all bits are the same."""
    pairs = ((one.rows, other.rows), (one.state, other.state), (one.touched, other.touched))
    return all(np.array_equal(mine, theirs) for mine, theirs in pairs)


def copy_of(ring: ParityRing, index: int, arena: Arena) -> Arena:
    """The rows as they are."""
    copy = Arena.empty(ring.job, *ring.placement.sizes(index))
    for mine, theirs in zip(copy.segments, arena.segments, strict=True):
        mine.rows[...], mine.state[...] = theirs.rows, theirs.state
    return copy


def same_rows(one: Arena, other: Arena) -> bool:
    """Return whether rows and state have the same bits."""
    return all(
        np.array_equal(mine.rows.view(np.uint8), theirs.rows.view(np.uint8))
        and np.array_equal(mine.state.view(np.uint8), theirs.state.view(np.uint8))
        for mine, theirs in zip(one.segments, other.segments, strict=True)
    )
