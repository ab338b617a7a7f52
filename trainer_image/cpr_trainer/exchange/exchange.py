"""`Exchange`: a trainer's access to embedding rows, which survives the failure of shards.

A thread owns all connections (`LinkLoop`). The caller queues frames, tries to send them at once, and waits. Every wait
has a timeout, so that the caller can handle other events in between.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import accumulate, pairwise
from time import monotonic
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cpr_contract.roster import TrainerRoster
from cpr_contract.spec import JobSpec, samples_at
from cpr_trainer.arrays import Ints, Values
from cpr_trainer.embedding.bfloat16 import converted
from cpr_trainer.embedding.memory import ResumeFile
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.segments import Seeding
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.exchange.encoding import Encoding, RowNames
from cpr_trainer.exchange.handshake import Session
from cpr_trainer.exchange.link import Link
from cpr_trainer.exchange.link_loop import LinkLoop, LinkStates
from cpr_trainer.exchange.lookup import CONNECTED, LinkState, PendingLookup, ShardsUnavailableError
from cpr_trainer.exchange.outbox import STATE_WIDTH, BlockLayout, Push, last_run
from cpr_trainer.exchange.pools import Spill
from cpr_trainer.exchange.ring import Block, Ring, padded_bytes
from cpr_trainer.runtime import Certificates

#: The steps of one trainer that may be unacknowledged.
WINDOW = 2
#: Pushes that only have to be acknowledged are few, however large.
_NO_LIMIT, _SMALL_SEGMENT = 1 << 40, 1 << 20
_NO_GENERATION = -1
_FORGOTTEN = 2  # its place in the resume state of a link


class Exchange(LinkStates):
    """A trainer's connections to all shards of its job.

    `total_samples` is of the whole job. At most `window` steps may be unacknowledged. Nothing is connected before the
    first `follow`. One thread makes the calls that send or wait; any thread may read the state. A `file` keeps pushes
    for the next process until shards have them, even if the job does not replay. Pushes go to `spill` if the memory for
    them is full.
    """

    def __init__(  # noqa: PLR0913 -- the trainer's identity, and four choices
        self,
        job: JobSpec,
        rank: int,
        incarnation: int,
        key: bytes,
        total_samples: int,
        *,
        file: ResumeFile | None = None,
        spill: Spill | None = None,
        certificates: Certificates | None = None,
        window: int = WINDOW,
        clock: Callable[[], float] = monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._session = Session(
            job.job_uid,
            rank,
            incarnation,
            key,
            Encoding.of(job),
            total_samples,
            job.silence_s,
            job.data.batch_size,
            job.parity_shards > 0,
            certificates,
        )
        self._dims = job.model.band_dims
        self._placement = Placement.of(job.model, job.shards)
        self._names = RowNames.of(job, self._placement)
        self._packed: tuple[UniqueRows, NDArray[Any], tuple[int, ...]] | None = None
        self._seeding = Seeding.of(job.model, job.data.seed)
        self._window = window
        self._replays = job.replay.enabled
        self._ring = Ring(job.replay_bytes, file, spill=spill) if self._replays else None
        if file is not None and not self._replays:
            self._ring = Ring(_NO_LIMIT, file, _SMALL_SEGMENT)
        self._layout = None if file is None else BlockLayout(job.shards, self._dims, self._names)
        super().__init__(LinkLoop(self._session, clock, rng or random.Random()), self._session, clock)
        self.resume(_NO_GENERATION, 0, np.full((job.shards, STATE_WIDTH), -1))

    def resume(self, generation: int, last_step: int, state: Ints) -> None:
        """Continue after the last process's push of `last_step`; call this before the first `follow`.

        state: int64 [S, 4], the last process's `resume_state`, which counts only in the same generation.
        """
        self._loop.on_links = lambda links: self._resume_links(links, generation, last_step, state)

    def end_data(self, total_samples: int) -> None:
        """Send shards the size of the job, whose data had no end before, with all later frames."""
        with self._loop.changed:
            self._session.total_samples = total_samples

    def follow(self, roster: TrainerRoster) -> None:
        """Connect to the shards that `roster` names, and to no others.

        Connections to superseded incarnations are closed; pushes that they did not acknowledge go to their successors.
        In a new generation unacknowledged pushes are dropped, and pending lookups fail. Unavailable shards with an
        allowance in `roster` are skipped: their rows read as first values, and pushes to them are dropped.
        """
        with self._loop.changed:
            self._loop.follow(roster)

    def empty_vectors(self, rows: UniqueRows) -> Values:
        """Return an empty array for the vectors of these rows, [u, D], or [v] of several dims, in their wire type."""
        shape = (len(rows), *self._dims) if len(self._dims) == 1 else rows.extents(self._dims)[-1]
        return np.empty(shape, self._session.encoding.vector_type)

    def by_band(self, rows: UniqueRows, vectors: Values) -> tuple[Values, ...]:
        """Split the vectors of a lookup by band, [u_b, D_b] each, in the order of its rows.

        Vectors of a single shard are not copied.
        """
        if len(self._dims) == 1:
            return (vectors,)
        cells = [vectors[start:end] for start, end in pairwise(rows.extents(self._dims))]
        bands: Iterator[list[Values]] = (cells[band :: rows.bands] for band in range(len(self._dims)))
        joined = (band[0] if len(band) == 1 else cast(Values, np.concatenate(band)) for band in bands)
        return tuple(band.reshape(-1, dim) for band, dim in zip(joined, self._dims, strict=True))

    def lookup(
        self, step: int, rows: UniqueRows, vectors: Values | None = None, as_of: int | None = None
    ) -> PendingLookup:
        """Request the vectors of `rows`, and return without waiting for them.

        They are received into `vectors` (from `empty_vectors`, or a part of that), or into a new array. A shard answers
        after all pushes that were sent to it before, and so reads this trainer's own writes. If it merges steps, it
        answers after step `as_of`, by default the one before `step`.
        """
        vectors = self.empty_vectors(rows) if vectors is None else vectors
        names, ends = self._pack(rows)
        with self._loop.changed:
            lookup = PendingLookup(rows, vectors, self._dims, self._loop.changed)
            for shard in lookup.shards:
                link, part = self._loop.links[shard], slice(ends[shard - 1] if shard else 0, ends[shard])
                if link.skip(step):
                    lookup.put(shard, self._first_values(rows, shard))
                else:
                    on_shard = rows.on_shard(shard)
                    count, answered_at = on_shard.stop - on_shard.start, step if as_of is None else as_of + 1
                    link.send_lookup(answered_at, names[part], count, lookup)
            self._send_remaining()
            return lookup

    def push(  # noqa: PLR0913, PLR0917 -- of what, and when
        self,
        step: int,
        rows: UniqueRows,
        gradients: Values | tuple[Values, ...],
        cut_step: int,
        timeout_s: float,
        persist: Callable[[Ints | None], None] = lambda _: None,
    ) -> None:
        """Send every shard its one push of `step`, also an empty one; it is sent again until acknowledged.

        If the job replays, it is kept until a save protects it, while there is memory.

        gradients: [u, D], C-ordered, one for each of `rows`, float32 or in their wire type; of several dims those of
        each, [u_b, D_b]. They must not change afterwards. cut_step: the next cut, 0 if none is announced. persist:
        called with the resume state, int64 [S, 4], once the push is in the file, and before anything of it is sent;
        with None if the push is larger than the memory for pushes.

        Waits while `window` steps are unacknowledged. Nothing is sent if it raises TimeoutError or
        ShardsUnavailableError; then call it again. The latter means that an unavailable shard has an acknowledgement to
        send, or may need a push that would be dropped for this one.
        """
        names, ends = self._pack(rows)
        bands = gradients if isinstance(gradients, tuple) else (gradients,)
        values = [converted(each, self._session.encoding.gradient_type) for each in bands]
        # For each band of tables, where the gradients of each shard end.
        parts = [
            tuple(accumulate((cell.stop - cell.start for cell in rows.cells(band)), initial=0))
            for band in range(len(bands))
        ]
        head = () if self._layout is None else (self._layout.head(self._session.counters.generation, rows, ends),)
        self._prepare_block(*head, names, *values)
        with self._loop.changed:
            self._wait(lambda link: link.pushes.unacknowledged < self._window or link.skip(step), timeout_s)
            block = self._reserve_block(step, *head, names, *values)
            noted: Ints | None = None
            if block is not None:
                block.retain()
                if self._layout is not None:
                    noted = self._layout.tail_of(block.keep(*head))
                    noted[0] = [link.row_updates for link in self._loop.links]
                names, values = block.keep(names), [block.keep(each) for each in values]
                if noted is not None:
                    block.seal(step)
            self._session.cut_step = cut_step
            for shard, link in enumerate(self._loop.links):
                mine = tuple(each[ends[shard] : ends[shard + 1]] for each, ends in zip(values, parts, strict=True))
                order = None if noted is None else noted[1, shard : shard + 1]
                part = slice(ends[shard - 1] if shard else 0, ends[shard])
                link.add_push(Push(step, names[part], mine, 0, block, self._replays, noted=order))
            persist(self.resume_state())
            for link in self._loop.links:
                link.send_on()
            if block is not None:
                block.release()
            self._send_remaining()

    def resume_state(self) -> Ints | None:
        """Return the state for `resume`, without the pushes, int64 [S, 4]; None if a push is not kept."""
        with self._loop.changed:
            if self._layout is None or not all(link.pushes.all_in_blocks for link in self._loop.links):
                return None
            return np.array([link.resume_state for link in self._loop.links], np.int64).reshape(-1, STATE_WIDTH)

    def wait_received(self, step: int, timeout_s: float) -> None:
        """Wait until all shards hold the push of `step`, or have applied it. Raises as `settle`."""
        with self._loop.changed:
            self._wait(lambda link: max(link.received, link.applied) >= step, timeout_s)

    def commit(self, step: int, cut_step: int, *, for_all: bool = False) -> None:
        """Commit all steps up to `step`: shards that merge steps may apply them. for_all: as if all ranks did."""
        with self._loop.changed:
            self._session.committed, self._session.for_all, self._session.cut_step = step, for_all, cut_step
            for link in self._loop.links:
                link.send_commit()
            self._send_remaining()

    def withdraw(self, step: int) -> None:
        """Drop the pushes after `step`, which is committed: this rank trains no further."""
        with self._loop.changed:
            for link in self._loop.links:
                link.withdraw(step)

    def settle(self, timeout_s: float) -> None:
        """Wait until all pushes are acknowledged. Raises TimeoutError, or ShardsUnavailableError if one cannot be now.

        Pushes that are kept for an unavailable shard count as unacknowledged, because it may need them.
        """
        with self._loop.changed:
            self._wait(lambda link: link.settled, timeout_s)

    def wait_ready(self, timeout_s: float, step: int | None = None) -> None:
        """Wait until all shards serve this generation, except those that `step` may skip.

        Raises ShardsUnavailableError naming those that do not in time.
        """
        with self._loop.changed:
            if not self._loop.wait_for(lambda: not self.unavailable(step), timeout_s):
                raise ShardsUnavailableError(self.unavailable(step))

    def replay_fill(self) -> float:
        """Return the portion of the memory for pushes that holds unprotected ones; 0 without replay.

        Pushes in parity are kept too, but count as free, because they are the first to be dropped.
        """
        with self._loop.changed:
            if self._ring is None or not self._replays:
                return 0.0
            return self._ring.fill_after(min((link.safe for link in self._loop.links), default=-1))

    def forgotten(self) -> tuple[int, ...]:
        """Return, for each shard, the samples up to which this rank cannot push again; empty without replay.

        Later samples are kept here or protected by a save that the shard reported. -1 before the first push. The value
        holds for the next steps that may be unacknowledged, so a shard that dies unseen still gets the rest.
        """
        if not self._replays:
            return ()
        with self._loop.changed:
            return tuple(map(self._forgotten, self._loop.links))

    def announce_cut(self, cut_step: int) -> None:
        """Announce the next cut (0: none), at once and in all further frames."""
        with self._loop.changed:
            if cut_step == self._session.cut_step:
                return
            self._session.cut_step = cut_step
            for link in self._loop.links:  # a trainer that has stopped at the cut sends no push
                if link.state in CONNECTED:
                    link.ping()
            self._send_remaining()

    def count(self, step: int, rows: UniqueRows) -> None:
        """Count the rows of a step that this trainer does not push, for each link that counts and lacks it."""
        with self._loop.changed:
            for shard, link in enumerate(self._loop.links):
                if link.counted >= 0:
                    link.count(step, len(rows.places[rows.on_shard(shard)]))

    def uncount(self, step: int, rows: UniqueRows) -> None:
        """Undo the count of a step that will be pushed again, for each link where it is the last counted one."""
        with self._loop.changed:
            for shard, link in enumerate(self._loop.links):
                link.uncount(step, len(rows.places[rows.on_shard(shard)]))

    def close(self) -> None:
        """Close all connections; what is not acknowledged may be lost."""
        self._loop.close()
        if self._ring is not None:
            self._ring.close()

    def _resume_links(self, links: Sequence[Link], generation: int, last_step: int, state: Ints) -> None:
        """Pass the pushes and the state of the last process to new links."""
        if self._ring is None or self._layout is None:
            return
        left = [self._layout.read(block) for block in self._ring.resumed]
        for each in left:
            each.block.retain()
        if generation == self._session.counters.generation:
            run = last_run(left, generation, last_step)
            for shard, (link, of_link) in enumerate(zip(links, state.tolist(), strict=True)):
                if of_link[_FORGOTTEN] >= 0:  # the block of a step is reused once no shard needs its push
                    of_link[_FORGOTTEN] = max(of_link[_FORGOTTEN], last_step - len(run))
                link.resume(of_link, (each.push(shard, protected=self._replays) for each in run))
        for each in left:
            each.block.release()
        self._ring.resumed.clear()

    def _pack(self, rows: UniqueRows) -> tuple[NDArray[Any], tuple[int, ...]]:
        """Return the packed names of rows, see `RowNames.pack`: once if a step pushes the rows that it looked up."""
        packed = self._packed  # another thread may look up the rows of the next step meanwhile
        if packed is None or packed[0] is not rows:
            packed = self._packed = rows, *self._names.pack(rows)
        return packed[1:]

    def _prepare_block(self, *arrays: NDArray[Any]) -> None:
        """Wait, without the lock, until there is touched memory for a step's pushes to all shards."""
        if self._ring is None:
            return
        with self._loop.changed:
            coming = self._ring.prepare(padded_bytes(arrays))
        if coming is not None:
            coming.result()

    def _reserve_block(self, step: int, *arrays: NDArray[Any]) -> Block | None:
        """Return a block for a step's pushes to all shards, evicting the oldest steps; None if they do not fit.

        Raises ShardsUnavailableError while an unavailable shard may need an evicted push.
        """
        if self._ring is None:
            return None
        size_bytes = padded_bytes(arrays)
        links = self._loop.links
        while (block := self._ring.take(size_bytes, step)) is None:
            oldest = min((each for link in links if (each := link.pushes.oldest_retained) is not None), default=None)
            if oldest is None:
                return None
            if unavailable := self.unavailable():
                raise ShardsUnavailableError(unavailable)
            for link in links:
                link.pushes.forget(oldest)
        return block

    def _forgotten(self, link: Link) -> int:
        step = link.pushes.forgotten
        if step < 0:
            return -1
        if self._ring is not None:
            step = max(step, self._ring.last_evicted(self._window + 1))
        session = self._session
        return samples_at(step, session.batch_size, session.total_samples)

    def _wait(self, settled: Callable[[Link], bool], timeout_s: float) -> None:
        """Wait until all links are settled, or an unsettled one is unavailable."""

        def unavailable() -> Collection[int]:
            unsettled = (link for link in self._loop.links if not settled(link))
            return [link.peer.index for link in unsettled if link.state is not LinkState.READY]

        done = self._loop.wait_for(lambda: bool(unavailable()) or all(map(settled, self._loop.links)), timeout_s)
        if not done:
            raise TimeoutError("shards have not acknowledged yet")
        if shards := unavailable():
            raise ShardsUnavailableError(shards)

    def _first_values(self, rows: UniqueRows, shard: int) -> Values:
        """Return the first values of rows on a shard, [v]."""
        cells = (rows.numbers[rows.cells(band)[shard]] for band in range(rows.bands))
        found = [self._seeding.values(*self._placement.tables_of(numbers)).ravel() for numbers in cells if len(numbers)]
        return converted(np.concatenate(found), self._session.encoding.vector_type)

    def _send_remaining(self) -> None:
        """Have the thread send what the sockets did not take at once."""
        if any(link.wants_write for link in self._loop.links):
            self._loop.wake()
