"""A trainer's pushes to a shard: in flight, kept until a save protects them, and passed to the next process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import lt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints, Values
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.exchange.encoding import RowNames
from cpr_trainer.exchange.ring import Block

#: Pushes in flight at a time: at least, at most, and the limit of their bytes above the least. The shard buffers them
#: while it waits for other ranks.
_LEAST_FLIGHT, _FLIGHT, _FLIGHT_BYTES = 2, 8, 4 << 20
#: The numbers of the ring in a block's head; and the numbers of a link, see `Link.resume_state`.
_OF_RING, STATE_WIDTH = 3, 4


@dataclass(frozen=True, slots=True, eq=False)
class Push:
    """The changes of a step on one shard, in their wire types. names: see `RowNames`. values: [k_b, D_b] each.

    row_updates: rows in all earlier pushes of this trainer's rank to the shard. block: the memory of the arrays; None:
    they have their own. protected: a push with a block is kept until a save protects it, otherwise until it is
    acknowledged. order: its place among the pushes of all ranks, assigned by the shard; 0: unknown. noted: int64 [1],
    the copy of `order` for the next process; None: there is none.
    """

    step: int
    names: NDArray[Any]
    values: tuple[Values, ...]
    row_updates: int
    block: Block | None = None
    protected: bool = True
    order: int = 0
    noted: Ints | None = None

    @property
    def nbytes(self) -> int:
        """The size of its arrays."""
        return self.names.nbytes + sum(each.nbytes for each in self.values)

    @property
    def count(self) -> int:
        """The number of rows."""
        return sum(map(len, self.values))


class Outbox:
    """Pushes in the order of their steps. It outlives connections and incarnations of the shard, not generations.

    The first ones are retained: acknowledged by the shard, and not in a save yet. Its successor gets them again. They
    and the unacknowledged ones are consecutive steps after step `forgotten`, which is -1 before the first push. Not
    thread-safe.
    """

    def __init__(self) -> None:
        self.forgotten = -1
        self._retained: deque[Push] = deque()
        self._unacknowledged: deque[Push] = deque()
        self._sent = 0  # the first of the unacknowledged ones that are in flight

    @property
    def unacknowledged(self) -> int:
        """The number of pushes that the shard has not acknowledged."""
        return len(self._unacknowledged)

    @property
    def all_in_blocks(self) -> bool:
        """True if every push that is not acknowledged lies in a block."""
        return all(push.block is not None for push in self._unacknowledged)

    @property
    def all_sent(self) -> bool:
        """True if every push is acknowledged or in flight."""
        return self._sent == len(self._unacknowledged)

    @property
    def last_step(self) -> int | None:
        """The step of the last push that is not acknowledged; None without one."""
        return self._unacknowledged[-1].step if self._unacknowledged else None

    @property
    def oldest_retained(self) -> int | None:
        """The step of the first push that is retained; None without one."""
        return self._retained[0].step if self._retained else None

    def last(self, step: int) -> Push | None:
        """Return the last push that is not acknowledged, if it is of `step`."""
        return self._unacknowledged[-1] if self.last_step == step else None

    def first_step(self, committed: int) -> int:
        """Return the step from which on all pushes are here; `committed` + 1 if there is none up to `committed`."""
        if self.forgotten >= 0:
            return self.forgotten + 1
        return self._unacknowledged[0].step if self._unacknowledged else committed + 1

    def add(self, push: Push) -> None:
        """Add the push of a new step, or of the last one, which is pushed again and replaces the former push."""
        last = self._unacknowledged[-1].step if self._unacknowledged else 0
        assert push.step >= last, f"step {push.step} is pushed after step {last}"
        self.drop_after(push.step - 1)
        if push.block is not None:
            push.block.retain()
        if push.block is not None and push.protected:
            if self.forgotten < 0:
                self.forgotten = push.step - 1
            while self._retained and self._retained[-1].step >= push.step:
                _release(self._retained.pop())
        self._unacknowledged.append(push)

    def resume(self, push: Push) -> None:
        """Add a push of the last process, which may be acknowledged."""
        if push.block is not None:
            push.block.retain()
        self._unacknowledged.append(push)

    def next_to_send(self) -> Iterator[Push]:
        """Yield the pushes that may be sent now; each counts as in flight from then on."""
        size_bytes = sum(push.nbytes for push in islice(self._unacknowledged, self._sent))
        for push in islice(self._unacknowledged, self._sent, _FLIGHT):
            size_bytes += push.nbytes
            if self._sent >= _LEAST_FLIGHT and size_bytes > _FLIGHT_BYTES:
                return
            self._sent += 1
            yield push

    def connection_lost(self) -> None:
        """Note that nothing is in flight any more."""
        self._sent = 0

    def acknowledge(self, step: int, order: int) -> None:
        """Note that the shard has applied all up to this step. order: the place of this step's push, 0: unknown."""
        while self._unacknowledged and self._unacknowledged[0].step <= step:
            push = self._unacknowledged.popleft()
            self._sent = max(self._sent - 1, 0)
            if order and push.step == step:
                push = replace(push, order=order)
                if push.noted is not None:
                    push.noted[0] = order
            self._retain(push)

    def forget(self, step: int) -> None:
        """Drop acknowledged pushes up to `step`: a save protects them, or their memory is needed."""
        while self._retained and self._retained[0].step <= step:
            _release(self._retained.popleft())
            self.forgotten = max(self.forgotten, step)

    def rewind(self, applied: int) -> None:
        """Queue again the retained pushes after this step, the last one that the shard has applied."""
        while self._retained and self._retained[-1].step > applied:
            self._unacknowledged.appendleft(self._retained.pop())
        steps = [push.step for push in (*self._retained, *self._unacknowledged)]
        assert all(map(lt, steps, steps[1:])), f"pushes are kept out of order: {steps}"

    def drop_after(self, step: int) -> Push | None:
        """Drop the unacknowledged pushes after this step; return the first of them."""
        first = None
        while self._unacknowledged and self._unacknowledged[-1].step > step:
            first = self._unacknowledged.pop()
            _release(first)
        self._sent = min(self._sent, len(self._unacknowledged))
        return first

    def drop_unacknowledged(self) -> None:
        """Drop all unacknowledged pushes."""
        while self._unacknowledged:
            _release(self._unacknowledged.popleft())
        self._sent = 0

    def clear(self) -> None:
        """Drop all pushes: a new generation begins."""
        self.drop_unacknowledged()
        while self._retained:
            _release(self._retained.popleft())
        self.forgotten = -1

    def _retain(self, push: Push) -> None:
        """Retain an acknowledged push if it has a block; otherwise drop it, and all before it."""
        if push.block is not None and push.protected:
            self._retained.append(push)
            return
        _release(push)
        self.forget(push.step)
        self.forgotten = max(self.forgotten, push.step) if self.forgotten >= 0 else -1


def _release(push: Push) -> None:
    """Free the memory of a dropped push."""
    if push.block is not None:
        push.block.release()


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The layout of a block with one step's pushes to all shards, from which the next process reads them.

    A block begins with a head, int64: three numbers of the ring, the generation, where the names of each shard's rows
    end, and the rows of each of its bands; then for each shard the row updates before, and the push's place among those
    of all ranks, which is written later. dims: of each band.
    """

    shards: int
    dims: tuple[int, ...]
    names: RowNames

    def head(self, generation: int, rows: UniqueRows, ends: Sequence[int]) -> Ints:
        """Return the head of a block for these rows, with zeros for the last numbers of each shard.

        ends: where their names end, of each shard.
        """
        bands = [np.cumsum([cell.stop - cell.start for cell in rows.cells(band)]) for band in range(len(self.dims))]
        return np.concatenate(([0] * _OF_RING, [generation], ends, *bands, [0] * 2 * self.shards)).astype(np.int64)

    def tail_of(self, head: Ints) -> Ints:
        """Return a view of the last numbers of a head, int64 [2, S]: row updates before, and places of the pushes."""
        return head[-2 * self.shards :].reshape(2, self.shards)

    def read(self, block: Block) -> StoredStep:
        """Read a block."""
        shards, bands = self.shards, len(self.dims)
        head: Ints = block.read((_OF_RING + 1 + shards * (3 + bands),), np.int64)
        ends = head[_OF_RING + 1 : _OF_RING + 1 + shards * (1 + bands)].reshape(1 + bands, shards).tolist()
        names = block.read((ends[0][-1],), self.names.dtype)
        values = [
            block.read((of_band[-1], dim), self.names.encoding.gradient_type)
            for of_band, dim in zip(ends[1:], self.dims, strict=True)
        ]
        step, generation = head[_OF_RING - 1 : _OF_RING + 1].tolist()
        return StoredStep(step, generation, block, names, values, ends, self.tail_of(head))


@dataclass(frozen=True, slots=True, eq=False)
class StoredStep:
    """One step's pushes to all shards, in a block. ends: where each shard's names end, then the rows of each band."""

    step: int
    generation: int
    block: Block
    names: NDArray[Any]
    values: Sequence[Values]
    ends: Sequence[Sequence[int]]
    tail_of: Ints

    def push(self, shard: int, *, protected: bool) -> Push:
        """Return the push to one shard."""
        parts = [slice(of[shard - 1] if shard else 0, of[shard]) for of in self.ends]
        values = tuple(each[part] for each, part in zip(self.values, parts[1:], strict=True))
        row_updates, order = self.tail_of[:, shard].tolist()
        noted = self.tail_of[1, shard : shard + 1]
        return Push(
            self.step, self.names[parts[0]], values, row_updates, self.block, protected, order=order, noted=noted
        )


def last_run(stored: Iterable[StoredStep], generation: int, last_step: int) -> list[StoredStep]:
    """Return the consecutive steps of a generation that end with `last_step`; of a step pushed twice the last push.

    stored: in the order in which they were pushed. Steps after `last_step` were never sent.
    """
    by_step = {each.step: each for each in stored if each.generation == generation}
    first = last_step + 1
    while first - 1 in by_step:
        first -= 1
    return [by_step[step] for step in range(first, last_step + 1)]
