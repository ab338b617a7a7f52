"""What a shard sends the holder of a parity: how some rows of a part have changed since the last flush."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.parity.images import Image

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
