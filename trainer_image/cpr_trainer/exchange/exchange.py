"""`Exchange`: how a trainer reads and changes embedding rows, whatever happens to the shards that hold them.

A thread owns all connections (`LinkLoop`). The caller only queues frames, tries to send them at once, and waits; every
wait has a time-out, so that the caller can look after other things in between.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_contract.roster import TrainerRoster
from cpr_contract.spec import JobSpec, samples_at
from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.memory import ResumeFile
from cpr_trainer.embedding.placement import Placement, UniqueRows
from cpr_trainer.embedding.segments import Seeding
from cpr_trainer.exchange.encoding import Encoding, Values
from cpr_trainer.exchange.handshake import Session
from cpr_trainer.exchange.link import Link
from cpr_trainer.exchange.lookup import LinkState, PendingLookup, SaveState, ShardsAwayError, by_band
from cpr_trainer.exchange.loop import LinkLoop
from cpr_trainer.exchange.outbox import STANDING, Form, Push, last_run
from cpr_trainer.exchange.ring import Block, Ring, room_bytes
from cpr_trainer.exchange.segments import Spill

#: Steps of one trainer whose pushes may be unacknowledged.
WINDOW = 2
#: Pushes that only have to be acknowledged are few, however large.
_NO_LIMIT, _SMALL_SEGMENT = 1 << 40, 1 << 20
_NO_GENERATION = -1
_FORGOTTEN = 2  # in what a link stands for


class Exchange:
    """A trainer's connections to all shards of its job.

    `total_samples` is of the whole job. `window` is how many steps may be unacknowledged. Nothing is connected before
    the first `follow`. One thread makes the calls that send or wait; any thread may look. In a `file` pushes are kept
    for the next process until shards have them, whether the job replays or not. `spill` is where they go if the memory
    for them is full.
    """

    def __init__(  # noqa: PLR0913 -- who, of what, and four choices
        self,
        job: JobSpec,
        rank: int,
        incarnation: int,
        key: bytes,
        total_samples: int,
        *,
        file: ResumeFile | None = None,
        spill: Spill | None = None,
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
        )
        self._dims = job.model.dims
        self._placement = Placement.of(job.model, job.shards)
        self._seeding = Seeding.of(job.model, job.data.seed)
        self._window = window
        self._clock = clock
        self._replays = job.replay.enabled
        self._ring = Ring(job.replay_bytes, file, spill=spill) if self._replays else None
        if file is not None and not self._replays:
            self._ring = Ring(_NO_LIMIT, file, _SMALL_SEGMENT)
        self._form = None if file is None else Form(job.shards, self._dims, self._session.encoding)
        self._loop = LinkLoop(self._session, clock, rng or random.Random())
        self.inherit(_NO_GENERATION, 0, np.full((job.shards, STANDING), -1))

    def inherit(self, generation: int, last_step: int, standing: Ints) -> None:
        """Go on where the last process stood after its push of this step; call it before the first `follow`.

        standing: int64 [S, 4], as the last process got it. Of another generation nothing is taken.
        """
        self._loop.on_links = lambda links: self._hand_down(links, generation, last_step, standing)

    def follow(self, roster: TrainerRoster) -> None:
        """Talk to the shards that `roster` names, and to no others.

        Connections to superseded incarnations are closed; what they did not acknowledge goes to their successors. With
        a new generation unacknowledged pushes are dropped, and lookups under way fail. Shards that `roster` has an
        allowance for are spared while they are away: their rows read as first values, and pushes to them are dropped.
        """
        with self._loop.changed:
            self._loop.follow(roster)

    def room(self, rows: UniqueRows) -> Values:
        """Return where the vectors of these rows fit, [u, D], or [v] of several dims, in the type that they travel in.

        `by_band` tells those of each dim.
        """
        shape = (len(rows), *self._dims) if len(self._dims) == 1 else rows.extents(self._dims)[-1]
        return np.empty(shape, self._session.encoding.dtype)

    def by_band(self, rows: UniqueRows, vectors: Values) -> tuple[Values, ...]:
        """Return what a lookup of these rows put into `room`, of each band [u_b, D_b], in the order of its rows."""
        return by_band(rows, vectors, self._dims)

    def lookup(self, step: int, rows: UniqueRows, vectors: Values | None = None) -> PendingLookup:
        """Ask for the vectors of `rows` at once, and return without waiting for them.

        They come into `vectors`, as `room` returns it or a part of that, or into a block of their own. A shard answers
        after all pushes that were sent to it before, and so reads this trainer's own writes.
        """
        vectors = self.room(rows) if vectors is None else vectors
        numbers = self._session.encoding.pack_numbers(rows.numbers)
        with self._loop.changed:
            lookup = PendingLookup(rows, vectors, self._dims, self._loop.changed)
            for shard in lookup.shards:
                link, part = self._loop.links[shard], rows.on_shard(shard)
                if link.spare(step):
                    lookup.put(shard, self._first_values(rows, shard))
                else:
                    link.send_lookup(step, numbers[part], lookup)
            self._send_rest()
            return lookup

    def push(  # noqa: PLR0913, PLR0917 -- of what, and when
        self,
        step: int,
        rows: UniqueRows,
        gradients: Values | tuple[Values, ...],
        cut_step: int,
        timeout_s: float,
        keep: Callable[[Ints | None], None] = lambda _: None,
    ) -> None:
        """Send every shard its one push of `step`, also an empty one; kept and sent again until acknowledged.

        Where the job replays, it is kept until a save protects it, as long as there is room.

        gradients: [u, D], C-ordered, one for each of `rows`, float32 or in the type that values travel in; of several
        dims those of each, [u_b, D_b]. They must not change any more.
        cut_step: the next cut, 0 if none is announced. Waits while `window` steps are unacknowledged;
        nothing is sent if that raises ShardsAwayError (a shard that owes an acknowledgement is away, or may need a push
        that would make room for this one) or TimeoutError: call again.
        keep: called with what `inherit` needs, int64 [S, 4], once the push is in the file, and before anything of it is
        sent; with None if it is not there, because it is larger than the memory for pushes.
        """
        encoding = self._session.encoding
        numbers = encoding.pack_numbers(rows.numbers)
        bands = gradients if isinstance(gradients, tuple) else (gradients,)
        values = [encoding.pack_values(each) for each in bands]
        # Of each band, which of its gradients are those of each shard.
        parts = [
            tuple(accumulate((cell.stop - cell.start for cell in rows.cells(band)), initial=0))
            for band in range(len(bands))
        ]
        head = () if self._form is None else (self._form.head(self._session.counters.generation, rows),)
        self._prepare_room(*head, numbers, *values)
        with self._loop.changed:
            self._wait(lambda link: link.pushes.unacknowledged < self._window or link.spare(step), timeout_s)
            block = self._room_for(step, *head, numbers, *values)
            noted: Ints | None = None
            if block is not None:
                block.hold()
                if self._form is not None:
                    noted = self._form.of_shards(block.keep(*head))
                    noted[0] = [link.row_updates for link in self._loop.links]
                numbers, values = block.keep(numbers), [block.keep(each) for each in values]
                if noted is not None:
                    block.seal(step)
            self._session.cut_step = cut_step
            for shard, link in enumerate(self._loop.links):
                mine = tuple(each[ends[shard] : ends[shard + 1]] for each, ends in zip(values, parts, strict=True))
                order = None if noted is None else noted[1, shard : shard + 1]
                link.add_push(Push(step, numbers[rows.on_shard(shard)], mine, 0, block, self._replays, noted=order))
            keep(self._standing())
            for link in self._loop.links:
                link.send_on()
            if block is not None:
                block.drop()
            self._send_rest()

    def standing(self) -> Ints | None:
        """Return what `inherit` needs besides the pushes, int64 [S, 4]; None if a push is not kept."""
        with self._loop.changed:
            return self._standing()

    def settle(self, timeout_s: float) -> None:
        """Wait until all pushes are acknowledged. Raises ShardsAwayError if one cannot be now, TimeoutError.

        A shard that is away, and may need what is kept for it, has not acknowledged that.
        """
        with self._loop.changed:
            self._wait(lambda link: link.settled, timeout_s)

    def wait_ready(self, timeout_s: float, step: int | None = None) -> None:
        """Wait until all shards serve this generation, but for those that `step` can spare.

        Raises ShardsAwayError naming those that do not in time.
        """
        with self._loop.changed:
            if not self._loop.wait_for(lambda: not self._away(step), timeout_s):
                raise ShardsAwayError(self._away(step))

    def kept(self) -> float:
        """Return how much of the memory for pushes that nothing protects yet is in use; 0 without replay.

        What parity holds counts as free: it is kept, but goes where there is no other room.
        """
        with self._loop.changed:
            if self._ring is None or not self._replays:
                return 0.0
            return self._ring.fill_after(min((link.safe for link in self._loop.links), default=-1))

    def forgotten(self) -> tuple[int, ...]:
        """Return, for each shard, the samples up to which this rank cannot push again; empty without replay.

        What comes after them is kept, or protected by a save that the shard told of. -1 before the first push. No more
        than that is forgotten within the next steps that may be unacknowledged, so that a shard which dies unseen
        still gets what was told.
        """
        if not self._replays:
            return ()
        with self._loop.changed:
            return tuple(map(self._forgotten, self._loop.links))

    def protected(self) -> tuple[int, ...]:
        """Return, for each shard, the samples up to which parity holds what all ranks pushed; -1: it does not."""
        with self._loop.changed:
            session = self._session
            return tuple(
                -1 if link.protected < 0 else samples_at(link.protected, session.batch_size, session.total_samples)
                for link in self._loop.links
            )

    def spared(self, step: int) -> bool:
        """Return whether `step` was trained without a shard."""
        with self._loop.changed:
            return any(step <= link.spared for link in self._loop.links)

    def heartbeat(self, cut_step: int) -> None:
        """Let all further frames carry the next cut (0: none), the pings of about once a second included."""
        with self._loop.changed:
            self._session.cut_step = cut_step

    def applied(self) -> tuple[int, ...]:
        """Return, for each shard, the last step of this trainer that it applied; -1 while unknown."""
        with self._loop.changed:
            return tuple(link.applied for link in self._loop.links)

    def counted(self) -> tuple[int, ...]:
        """Return, for each shard, the step up to which this rank's row updates are counted; -1 while unknown."""
        with self._loop.changed:
            return tuple(link.counted for link in self._loop.links)

    def count(self, step: int, rows: UniqueRows) -> None:
        """Count the rows of a step that this trainer does not push, where it is not counted."""
        with self._loop.changed:
            for shard, link in enumerate(self._loop.links):
                link.count(step, len(rows.places[rows.on_shard(shard)]))

    def uncount(self, step: int, rows: UniqueRows) -> None:
        """Take back the count of a step that will be pushed again, where it is the last one that is counted."""
        with self._loop.changed:
            for shard, link in enumerate(self._loop.links):
                link.uncount(step, len(rows.places[rows.on_shard(shard)]))

    def saved(self) -> tuple[SaveState, ...]:
        """Return each shard's newest committed save."""
        with self._loop.changed:
            return tuple(link.saved for link in self._loop.links)

    def lives(self) -> tuple[int, ...]:
        """Return how many lives each shard's incarnation has had by now; 0 before it told."""
        with self._loop.changed:
            return tuple(link.life for link in self._loop.links)

    def away(self, step: int | None = None) -> tuple[int, ...]:
        """Return the shards that cannot be reached, or do not serve this generation: those that `step` cannot spare."""
        with self._loop.changed:
            return self._away(step)

    def silent(self, for_s: float) -> tuple[int, ...]:
        """Return the shards that have an address, and were not heard for the last `for_s` seconds."""
        with self._loop.changed:
            now = self._clock()
            return tuple(link.peer.index for link in self._loop.links if link.silent(now, for_s))

    def problems(self) -> tuple[str, ...]:
        """Return why shards refused this trainer, in words; empty if none does."""
        with self._loop.changed:
            return tuple(link.problem for link in self._loop.links if link.problem is not None)

    @property
    def newest_roster_seen(self) -> int:
        """The highest `roster` counter that any shard has named."""
        return self._session.newest_roster_seen

    def close(self) -> None:
        """Close all connections; what is not acknowledged may be lost."""
        self._loop.close()
        if self._ring is not None:
            self._ring.close()

    def _standing(self) -> Ints | None:
        if self._form is None or not all(link.pushes.kept for link in self._loop.links):
            return None
        return np.array([link.standing for link in self._loop.links], np.int64).reshape(-1, STANDING)

    def _hand_down(self, links: Sequence[Link], generation: int, last_step: int, standing: Ints) -> None:
        """Give new links what the last process left for them."""
        if self._ring is None or self._form is None:
            return
        left = [self._form.read(block) for block in self._ring.left]
        for each in left:
            each.block.hold()
        if generation == self._session.counters.generation:
            run = last_run(left, generation, last_step)
            for shard, (link, stood) in enumerate(zip(links, standing.tolist(), strict=True)):
                if stood[_FORGOTTEN] >= 0:  # a step of which no shard needs the push any more makes room for others
                    stood[_FORGOTTEN] = max(stood[_FORGOTTEN], last_step - len(run))
                link.inherit(stood, (each.push(shard, protected=self._replays) for each in run))
        for each in left:
            each.block.drop()
        self._ring.left.clear()

    def _prepare_room(self, *arrays: NDArray[Any]) -> None:
        """Wait until there is memory that is touched for what all shards get of a step; the lock is free meanwhile."""
        if self._ring is None:
            return
        with self._loop.changed:
            coming = self._ring.prepare(room_bytes(arrays))
        if coming is not None:
            coming.result()

    def _room_for(self, step: int, *arrays: NDArray[Any]) -> Block | None:
        """Return room for what all shards get of a step; the oldest steps make it. None if there is none, or no replay.

        Raises ShardsAwayError while a shard is away and would lose what it is about to need.
        """
        if self._ring is None:
            return None
        size_bytes = room_bytes(arrays)
        links = self._loop.links
        while (block := self._ring.take(size_bytes, step)) is None:
            oldest = min((each for link in links if (each := link.pushes.oldest_retained) is not None), default=None)
            if oldest is None:
                return None
            if away := self._away(None):
                raise ShardsAwayError(away)
            for link in links:
                link.pushes.forget(oldest)
        return block

    def _forgotten(self, link: Link) -> int:
        step = link.pushes.forgotten
        if step < 0:
            return -1
        if self._ring is not None:
            step = max(step, self._ring.last_to_go(self._window + 1))
        session = self._session
        return samples_at(step, session.batch_size, session.total_samples)

    def _wait(self, settled: Callable[[Link], bool], timeout_s: float) -> None:
        """Wait until all links are settled, or one that is not is away."""

        def away() -> Collection[int]:
            owing = (link for link in self._loop.links if not settled(link))
            return [link.peer.index for link in owing if link.state is not LinkState.READY]

        done = self._loop.wait_for(lambda: bool(away()) or all(map(settled, self._loop.links)), timeout_s)
        if not done:
            raise TimeoutError("shards have not acknowledged yet")
        if shards := away():
            raise ShardsAwayError(shards)

    def _away(self, step: int | None) -> tuple[int, ...]:
        away = (link for link in self._loop.links if link.state is not LinkState.READY)
        return tuple(link.peer.index for link in away if step is None or not link.can_spare(step))

    def _first_values(self, rows: UniqueRows, shard: int) -> Values:
        """Return the first values of rows on a shard, [v]."""
        cells = (rows.numbers[rows.cells(band)[shard]] for band in range(rows.bands))
        found = [self._seeding.values(*self._placement.tables_of(numbers)).ravel() for numbers in cells if len(numbers)]
        return self._session.encoding.pack_values(np.concatenate(found))

    def _send_rest(self) -> None:
        """Let the thread send what the sockets did not take at once."""
        if any(link.wants_write for link in self._loop.links):
            self._loop.wake()
