"""Rows that are written or added many at once."""

from __future__ import annotations

import numpy as np
import pytest

from cpr_trainer.embedding.segments import Epochs
from cpr_trainer.parity.coding import Image, View
from support.parity_ring import same

ROWS, FIRST = 40, 7


def test_run_longer_than_the_part_is_refused_unless_its_excess_is_unchanged() -> None:
    rows, state = np.zeros((ROWS, 5), np.uint32), np.zeros((ROWS, 2), np.uint32)
    mine, image = View(rows, state, 7, Epochs(ROWS + 7)), Image.zeros(12, 5, 2)
    mine.write(ROWS - 4, image)  # rows that the shorter last part does not have count as zeros
    image.touched[...] = 1
    with pytest.raises(ValueError, match="rows do not fit"):
        mine.write(ROWS - 4, image)


@pytest.mark.parametrize("count", [0, 1, 1024, 3000])
def test_added_rows_are_at_their_positions(count: int) -> None:
    rng = np.random.default_rng(count)

    def image(rows: int) -> Image:
        bits = rng.integers(0, 2**32, (rows, 6), np.uint32)
        return Image(bits[:, :4].copy(), bits[:, 4:].copy(), rng.integers(0, 2, rows, np.uint8))

    whole, change = image(4000), image(count)
    at = rng.permutation(4000)[:count].astype(np.uint32)
    expected = whole.copy()
    for row, place in enumerate(at):
        expected.rows[place] ^= change.rows[row]
        expected.state[place] ^= change.state[row]
        expected.touched[place] ^= change.touched[row]
    whole.add_at(at, change)
    assert same(whole, expected)
