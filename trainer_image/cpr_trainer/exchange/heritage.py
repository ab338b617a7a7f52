"""The pushes of a trainer as its next process finds them: each block of the ring says what is in it.

A block is of one step, for all shards. It begins with a head, int64: three numbers of the ring's, the generation, where
the rows of each shard end, and those of each of its bands; then of each shard how many row updates came before, and
the push's place among those of all ranks, which comes later than the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints
from cpr_trainer.exchange.encoding import Encoding, Values
from cpr_trainer.exchange.outbox import Push
from cpr_trainer.exchange.ring import Block
from cpr_trainer.rows import UniqueRows

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
