"""The pushes of a trainer to a shard: on their way, kept until a save protects them, found by its next process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.placement import UniqueRows
from cpr_trainer.exchange.encoding import Encoding, Values
from cpr_trainer.exchange.ring import Block

#: So many pushes may be on their way at once: the shard keeps them in memory while it waits for other ranks. The least
#: is what may be unacknowledged at any time; beyond it they take so many bytes together at most.
_LEAST_FLIGHT, _FLIGHT, _FLIGHT_BYTES = 2, 8, 4 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Push:
    """What a step changes on one shard, as it travels. numbers: [k]. values: [k_b, D_b] each.

    row_updates: rows in all pushes of this trainer's rank to the shard before this one. block: where the arrays lie, if
    not in memory of their own. protected: with a block, the push is kept until a save protects it, else until it is
    acknowledged. order: its place among the pushes of all ranks, as the shard has told it; 0: not known. noted: int64
    [1], where that is noted for the next process; None: nowhere.
    """

    step: int
    numbers: NDArray[Any]
    values: tuple[Values, ...]
    row_updates: int
    block: Block | None = None
    protected: bool = True
    order: int = 0
    noted: Ints | None = None

    @property
    def nbytes(self) -> int:
        """The size of its arrays."""
        return self.numbers.nbytes + sum(each.nbytes for each in self.values)


class Outbox:
    """Pushes in the order of their steps. It outlives connections and incarnations of the shard, not generations.

    First come the retained ones, which the shard has acknowledged and no save holds yet: its successor gets them again.
    They and the unacknowledged ones are a run of steps without a gap, which begins after step `forgotten`; that is -1
    while there was no push. Not for several threads at once.
    """

    def __init__(self) -> None:
        self.forgotten = -1
        self._retained: deque[Push] = deque()
        self._unacknowledged: deque[Push] = deque()
        self._sent = 0  # so many of the unacknowledged ones, the first, are on their way

    @property
    def unacknowledged(self) -> int:
        """How many pushes the shard has not acknowledged."""
        return len(self._unacknowledged)

    @property
    def kept(self) -> bool:
        """Whether every push that is not acknowledged lies in a block."""
        return all(push.block is not None for push in self._unacknowledged)

    @property
    def all_sent(self) -> bool:
        """Whether every push is acknowledged or on its way."""
        return self._sent == len(self._unacknowledged)

    @property
    def last_step(self) -> int | None:
        """The step of the last push that is not acknowledged; None without one."""
        return self._unacknowledged[-1].step if self._unacknowledged else None

    @property
    def oldest_retained(self) -> int | None:
        """The step of the first push that is retained; None without one."""
        return self._retained[0].step if self._retained else None

    def add(self, push: Push) -> None:
        """Take in the push of a new step, or of one that is pushed once more, which replaces what is retained of it."""
        if push.block is not None:
            push.block.hold()
        if push.block is not None and push.protected:
            if self.forgotten < 0:
                self.forgotten = push.step - 1
            while self._retained and self._retained[-1].step >= push.step:
                _release(self._retained.pop())
        self._unacknowledged.append(push)

    def inherit(self, push: Push) -> None:
        """Take in a push that the last process kept: it may be acknowledged."""
        if push.block is not None:
            push.block.hold()
        self._unacknowledged.append(push)

    def next_to_send(self) -> Iterator[Push]:
        """The pushes that may be sent now; each counts as on its way from then on."""
        size_bytes = sum(push.nbytes for push in islice(self._unacknowledged, self._sent))
        for push in islice(self._unacknowledged, self._sent, _FLIGHT):
            size_bytes += push.nbytes
            if self._sent >= _LEAST_FLIGHT and size_bytes > _FLIGHT_BYTES:
                return
            self._sent += 1
            yield push

    def connection_lost(self) -> None:
        """Nothing is on its way any more."""
        self._sent = 0

    def acknowledge(self, step: int, order: int) -> None:
        """The shard has applied all up to this step. order: the place of this step's push among all, 0: not told."""
        while self._unacknowledged and self._unacknowledged[0].step <= step:
            push = self._unacknowledged.popleft()
            self._sent = max(self._sent - 1, 0)
            if order and push.step == step:
                push = replace(push, order=order)
                if push.noted is not None:
                    push.noted[0] = order
            self._retain(push)

    def forget(self, step: int) -> None:
        """Keep no push up to `step` that is acknowledged: a save protects it, or there is no room for it any more."""
        while self._retained and self._retained[0].step <= step:
            _release(self._retained.popleft())
            self.forgotten = max(self.forgotten, step)

    def rewind(self, applied: int) -> None:
        """Send again what a shard that has applied all up to this step lacks."""
        while self._retained and self._retained[-1].step > applied:
            self._unacknowledged.appendleft(self._retained.pop())

    def drop_unacknowledged(self) -> None:
        """Send nothing of what is not acknowledged."""
        while self._unacknowledged:
            _release(self._unacknowledged.popleft())
        self._sent = 0

    def clear(self) -> None:
        """Forget everything: a new generation begins."""
        self.drop_unacknowledged()
        while self._retained:
            _release(self._retained.popleft())
        self.forgotten = -1

    def _retain(self, push: Push) -> None:
        """Keep a push that is acknowledged, if there is memory for that; nothing before one that is not kept."""
        if push.block is not None and push.protected:
            self._retained.append(push)
            return
        _release(push)
        self.forget(push.step)
        self.forgotten = max(self.forgotten, push.step) if self.forgotten >= 0 else -1


def _release(push: Push) -> None:
    """Give back the memory of a push that is kept no more."""
    if push.block is not None:
        push.block.drop()


# The pushes of a trainer as its next process finds them: each block of the ring says what is in it.
#
# A block is of one step, for all shards. It begins with a head, int64: three numbers of the ring's, the generation,
# where the rows of each shard end, and those of each of its bands; then of each shard how many row updates came before,
# and the push's place among those of all ranks, which comes later than the rest.


#: Of the ring; and of each link, see `Link.standing`.
_OF_RING, STANDING = 3, 4


@dataclass(frozen=True, slots=True)
class Form:
    """What all blocks of a job have in common. dims: of each band."""

    shards: int
    dims: tuple[int, ...]
    encoding: Encoding

    def head(self, generation: int, rows: UniqueRows) -> Ints:
        """Return the head of a block for these rows, but for the last numbers of each shard."""
        ends = [rows.on_shard(shard).stop for shard in range(self.shards)]
        bands = [np.cumsum([cell.stop - cell.start for cell in rows.cells(band)]) for band in range(len(self.dims))]
        return np.concatenate(([0] * _OF_RING, [generation], ends, *bands, [0] * 2 * self.shards)).astype(np.int64)

    def of_shards(self, head: Ints) -> Ints:
        """Return the last numbers of a head, int64 [2, S], a view: row updates before, and places among all pushes."""
        return head[-2 * self.shards :].reshape(2, self.shards)

    def read(self, block: Block) -> Stored:
        """Return what is in a block."""
        shards, bands = self.shards, len(self.dims)
        head: Ints = block.read((_OF_RING + 1 + shards * (3 + bands),), np.int64)
        ends = head[_OF_RING + 1 : _OF_RING + 1 + shards * (1 + bands)].reshape(1 + bands, shards).tolist()
        numbers = block.read((ends[0][-1],), np.dtype(f"<i{self.encoding.number_bytes}"))
        values = [
            block.read((of_band[-1], dim), self.encoding.dtype)
            for of_band, dim in zip(ends[1:], self.dims, strict=True)
        ]
        step, generation = head[_OF_RING - 1 : _OF_RING + 1].tolist()
        return Stored(step, generation, block, numbers, values, ends, self.of_shards(head))


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """One step's pushes to all shards, in a block. ends: where each shard's numbers end, then those of each band."""

    step: int
    generation: int
    block: Block
    numbers: NDArray[Any]
    values: Sequence[Values]
    ends: Sequence[Sequence[int]]
    of_shards: Ints

    def push(self, shard: int, *, protected: bool) -> Push:
        """Return the push to one shard."""
        parts = [slice(of[shard - 1] if shard else 0, of[shard]) for of in self.ends]
        values = tuple(each[part] for each, part in zip(self.values, parts[1:], strict=True))
        row_updates, order = self.of_shards[:, shard].tolist()
        noted = self.of_shards[1, shard : shard + 1]
        return Push(
            self.step, self.numbers[parts[0]], values, row_updates, self.block, protected, order=order, noted=noted
        )


def last_run(stored: Iterable[Stored], generation: int, last_step: int) -> list[Stored]:
    """Return the steps of a generation up to this one that follow one another; of one pushed twice the last push.

    stored: in the order in which they were pushed. What is later than `last_step` was never sent.
    """
    by_step = {each.step: each for each in stored if each.generation == generation}
    first = last_step + 1
    while first - 1 in by_step:
        first -= 1
    return [by_step[step] for step in range(first, last_step + 1)]
