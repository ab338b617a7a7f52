"""Rows that are read, written or added many at once are what they are one by one."""

from __future__ import annotations

import numpy as np
import pytest

from cpr_trainer.parity.coding import Image, View
from cpr_trainer.tables.segments import Epochs
from support.parity_ring import same

ROWS, FIRST = 40, 7


def view(changed: str) -> View:
    """Rows of a segment that begins at slot 7, of which all, some or none ever changed."""
    rng = np.random.default_rng(3)
    rows, state = (rng.integers(1, 2**32, (ROWS, width), np.uint32) for width in (5, 2))
    epochs = Epochs(FIRST + ROWS + 2)
    if changed == "all":
        epochs.note(np.arange(FIRST, FIRST + ROWS))
    elif changed == "some":
        epochs.note(np.flatnonzero(rng.random(ROWS) < 0.5) + FIRST)
    return View(rows, state, FIRST, epochs)


@pytest.mark.parametrize("changed", ["all", "some", "none"])
def test_a_run_is_read_as_its_rows_are(changed: str) -> None:
    mine = view(changed)
    run, single = Image.zeros(12, 5, 2), Image.zeros(12, 5, 2)
    run.rows[...] = 9  # whatever was there
    mine.read_run(10, 22, run)
    mine.read(np.arange(10, 22), single)
    assert same(run, single)
    assert run.touched.any() == (changed != "none")


@pytest.mark.parametrize("touched", ["all", "some", "none"])
def test_what_was_written_is_read_again_and_counts_as_changed(touched: str) -> None:
    source, mine = view(touched), view("none")
    before, image = mine.rows.copy(), Image.zeros(12, 5, 2)
    source.read_run(3, 15, image)
    image.rows[...] ^= np.where(image.touched[:, None], np.uint32(5), np.uint32(0))
    mine.write(20, image)
    read = Image.zeros(12, 5, 2)
    mine.read_run(20, 32, read)
    assert same(read, image)
    untouched = np.ones(ROWS, np.bool_)
    untouched[20:32] = image.touched == 0
    assert np.array_equal(mine.rows[untouched], before[untouched])
    assert mine.epochs.changed_rows == image.touched.sum()


def test_a_run_that_is_longer_than_the_part_is_refused_unless_nothing_of_it_counts() -> None:
    mine, image = view("none"), Image.zeros(12, 5, 2)
    mine.write(ROWS - 4, image)  # rows that the shorter last part does not have count as zeros
    image.touched[...] = 1
    with pytest.raises(ValueError, match="rows do not fit"):
        mine.write(ROWS - 4, image)


@pytest.mark.parametrize("count", [0, 1, 1024, 3000])
def test_rows_are_added_where_they_belong_however_many(count: int) -> None:
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
