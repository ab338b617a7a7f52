"""Rows of one segment with an image for each, in memory that is used over and over: new memory is slow to touch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints
from cpr_trainer.parity.images import Image

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
