"""A flush to the holder of a parity: the changes of rows since the last one, and the progress that they represent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_contract.manifests import Ranges, RowUpdates
from cpr_contract.reports import SaveRef
from cpr_trainer.arrays import Ints
from cpr_trainer.parity.coding import Image, PartShape

_LEAST_ROWS = 1024
#: The author and the number of flushes that were sealed together, one for each part of a shard.
Moment = tuple[int, int]


class Batch:
    """Rows of one segment with their images, in reused memory, because new memory is slow to touch.

    `used` rows are valid. It grows up to the rows of `shape`, and never shrinks.
    """

    def __init__(self, shape: PartShape) -> None:
        self.used = 0
        self._shape = shape
        self._at: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._image = Image.zeros(0, *shape[1:])

    @property
    def at(self) -> NDArray[np.uint32]:
        """The places of the rows in their part."""
        return self._at[: self.used]

    @property
    def image(self) -> Image:
        """The images of the rows."""
        return self._image[: self.used]

    @property
    def nbytes(self) -> int:
        """The size of the valid rows."""
        return self.at.nbytes + self.image.nbytes

    def add(self, at: Ints | NDArray[np.uint32]) -> Image:
        """Add some rows; return the image to fill in."""
        size, first, self.used = len(self._at), self.used, self.used + len(at)
        if self.used > size:
            rows, old = max(self.used, min(max(2 * size, _LEAST_ROWS), self._shape.rows)), self._image
            grown, image = np.empty(rows, np.uint32), Image.zeros(rows, *self._shape[1:])
            grown[:size] = self._at
            image[:size].rows[...], image[:size].state[...] = old.rows, old.state
            image[:size].touched[...] = old.touched
            self._at, self._image = grown, image
        self._at[first : self.used] = at
        return self._image[first : self.used]


@dataclass(frozen=True, slots=True)
class Point:
    """The last flush of a part in a parity.

    build: the name of the parity (see `ParityStore`). author: the random name of the process that sent the flush.
    number: its number, which other authors may use too. Author and number are 0 before the first flush.
    """

    build: int
    author: int = 0
    number: int = 0

    @property
    def moment(self) -> Moment:
        """The author and number, which are equal in all parities after flushes of one moment."""
        return self.author, self.number


@dataclass(frozen=True, slots=True, eq=False)
class Delta:
    """Changes of one segment. at: uint32 [n], rows of the part, distinct. change: XOR of before and after, [n]."""

    at: NDArray[np.uint32]
    change: Image

    @property
    def nbytes(self) -> int:
        """The size of its arrays."""
        return self.at.nbytes + self.change.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Flush:
    """A flush, which is applied as a whole or not at all.

    before, after: the points of the part before and after it. complete: the parity has the whole part after it.
    mark: the progress of the rows after it, opaque here. deltas: one for each segment.
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


@dataclass(frozen=True, slots=True)
class FlushAccount:
    """The mark of a flush, as JSON: the progress from which a rebuilt shard continues.

    applied[r]: the last step of rank r in the rows. step, samples, lost, row_updates: as in a save of the rows;
    `whole_samples` are those of the steps that the rows have of every rank. order: the place of the last push among
    those of all ranks. save, saved_steps: the newest committed save of the shard, and the last step of each rank in it.
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
    """The points of all parts of a rebuilt shard, their mark, and two fields of its `FlushAccount`."""

    points: tuple[Point, ...]
    mark: str
    order: int
    saved_steps: tuple[int, ...]
