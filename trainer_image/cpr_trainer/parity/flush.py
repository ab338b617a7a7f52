"""What a shard sends the holder of a parity: how rows have changed since the last flush, and what they stand for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_contract.manifests import Ranges, RowUpdates
from cpr_contract.reports import SaveRef
from cpr_trainer.arrays import Ints
from cpr_trainer.parity.coding import Image

# Rows of one segment with an image for each, in memory that is used over and over: new memory is slow to touch.


_LEAST_ROWS = 1024


class Batch:
    """`used` rows. It grows, and never shrinks. `most` is how many there may ever be."""

    def __init__(self, dim: int, width: int, most: int) -> None:
        self.used = 0
        self._most = most
        self._at: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._image = Image.zeros(0, dim, width)

    @property
    def at(self) -> NDArray[np.uint32]:
        """Where in their part the rows are."""
        return self._at[: self.used]

    @property
    def image(self) -> Image:
        """What is known of them."""
        return self._image[: self.used]

    @property
    def nbytes(self) -> int:
        """The size of what is used."""
        return self.at.nbytes + self.image.nbytes

    def add(self, at: Ints | NDArray[np.uint32]) -> Image:
        """Add some rows; return where the image of them is to be put."""
        first, self.used = self.used, self.used + len(at)
        self._grow()
        self._at[first : self.used] = at
        return self._image[first : self.used]

    def clear(self) -> None:
        """Hold nothing."""
        self.used = 0

    def _grow(self) -> None:
        size = len(self._at)
        if self.used <= size:
            return
        rows = max(self.used, min(max(2 * size, _LEAST_ROWS), self._most))
        at, image = np.empty(rows, np.uint32), Image.zeros(rows, self._image.rows.shape[1], self._image.state.shape[1])
        at[:size] = self._at
        image[:size].rows[...], image[:size].state[...] = self._image.rows, self._image.state
        image[:size].touched[...] = self._image.touched
        self._at, self._image = at, image


#: The author and the number of flushes that were sealed together, one for each part of a shard.
Moment = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Point:
    """Up to where a parity has a part: which parity, and whose flush, and the number that it has.

    build: the name of a parity (see `ParityStore`). author: the name of a process that sends flushes, random; 0 and the
    number 0 where there was none. Other processes may number theirs alike, and other parities have other builds.
    """

    build: int
    author: int = 0
    number: int = 0

    @property
    def moment(self) -> Moment:
        """What is the same in all parities that a shard was flushed to at the same moment."""
        return self.author, self.number


@dataclass(frozen=True, slots=True, eq=False)
class Delta:
    """Of one segment. at: uint32 [n], rows of the part, all different. change: the XOR of before and after, [n]."""

    at: NDArray[np.uint32]
    change: Image

    @property
    def nbytes(self) -> int:
        """The size of its arrays."""
        return self.at.nbytes + self.change.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Flush:
    """A flush, which is taken as a whole or not at all.

    before, after: where the parity stands without it and with it. complete: the whole part is in the parity with it.
    mark: what the rows stand for then; not looked at here. deltas: one for each segment.
    """

    before: Point
    after: Point
    complete: bool
    mark: str
    deltas: tuple[Delta, ...]

    @property
    def nbytes(self) -> int:
        """The size of its arrays."""
        return sum(delta.nbytes for delta in self.deltas)


# What the rows of a flush stand for: what a shard needs beside them to go on from there.


@dataclass(frozen=True, slots=True)
class FlushAccount:
    """The mark of a flush, as JSON.

    applied[r]: the last step of rank r in the rows. step, samples, lost, row_updates: as a save of the rows would say;
    `whole_samples` are those of the steps that the rows have of every rank.
    order: the place of the last push among those of all ranks. save, saved_steps: the newest save of the shard that was
    committed by then, and the last step of each rank in it.
    """

    generation: int
    step: int
    samples: int
    whole_samples: int
    applied: tuple[int, ...]
    lost: Ranges
    row_updates: RowUpdates
    order: int = 0
    save: SaveRef | None = None
    saved_steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a shard that was computed from parity knows beside its rows: where all of its parts stand, and their mark.

    order, saved_steps: see `FlushAccount`.
    """

    points: tuple[Point, ...]
    mark: str
    order: int
    saved_steps: tuple[int, ...]
