"""Rows that are still to come: which of them somebody waits for, and that each is written once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cpr_trainer.arrays import Ints
from cpr_trainer.parity import fetch
from cpr_trainer.parity.coding import Image, Listed, Parts, Selected
from cpr_trainer.parity.fetch import Missing, Piece
from cpr_trainer.placement import Placement
from cpr_trainer.tables.arena import Home
from support.parity_ring import banded_job
from support.shard_job import small_job

K = 2


@pytest.fixture
def home() -> Home:
    """Bands of several dims, with first values."""
    job = banded_job(3)
    home = Home.of(job, Placement.of(job.model, 3), 1)
    home.arena.seed(home.placement, home.index, home.seeding)
    return home


@pytest.fixture
def missing(home: Home) -> Missing:
    return Missing(home, parts_of(home))


def parts_of(home: Home) -> Parts:
    return Parts.of(home.placement, K)


def places(rows: Selected) -> Ints:
    return rows.at.astype(np.int64) if isinstance(rows, Listed) else np.arange(rows.start, rows.stop)


def slots_of(home: Home, piece: Piece) -> Ints:
    part, segment, rows = piece
    mine = home.arena.segments[segment]
    return places(rows) + parts_of(home).span(part, segment, len(mine))[0] + mine.first


def image_of(home: Home, piece: Piece, value: int, *, touched: int = 1) -> Image:
    _, segment, rows = piece
    mine = home.arena.segments[segment]
    image = Image.zeros(len(rows), mine.dim, mine.state.shape[1])
    image.rows[...], image.state[...], image.touched[...] = value * touched, value * touched, touched
    return image


def bits(home: Home, slots: Ints) -> list[int]:
    return [int(segment.rows.view(np.uint32)[at, 0]) for segment, found in home.arena.parted(slots) for at in found]


def test_rows_that_somebody_waits_for_are_told_once(home: Home, missing: Missing) -> None:
    last = len(home.arena) - 1
    assert missing.lacks(np.array([3, 5, last]))
    assert missing.lacks(np.array([5, 7]))
    wanted = list(missing.wanted())
    assert sorted(np.concatenate([slots_of(home, piece) for piece in wanted])) == [3, 5, 7, last]
    assert missing.lacks(np.array([3])), "it is asked for, and not there"
    assert list(missing.wanted()) == []


def test_pieces_are_all_rows_once(home: Home, missing: Missing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_PIECE_BYTES", 100)
    slots = np.concatenate([slots_of(home, piece) for piece in missing.pieces()])
    assert sorted(slots) == list(range(len(home.arena)))


def test_what_is_waited_for_is_divided_as_the_rest_is(
    home: Home, missing: Missing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_PIECE_BYTES", 100)
    assert missing.lacks(np.arange(len(home.arena)))
    wanted, rest = list(missing.wanted()), list(missing.pieces())
    assert len(wanted) > 2 * K
    assert max(len(rows) for _, _, rows in wanted) <= max(len(rows) for _, _, rows in rest)
    assert sorted(np.concatenate([slots_of(home, piece) for piece in wanted])) == list(range(len(home.arena)))


def test_a_row_that_is_there_is_not_written_again(home: Home, missing: Missing) -> None:
    """By then a push may have changed it, and a flush have brought that into the parity."""
    assert missing.lacks(np.array([2]))
    (wanted,) = missing.wanted()
    missing.write(*wanted, image_of(home, wanted, 7))
    assert not missing.lacks(np.array([2]))
    for piece in missing.pieces():
        missing.write(*piece, image_of(home, piece, 9))
    assert missing.left == 0
    assert bits(home, np.array([1, 2, 3])) == [9, 7, 9]
    assert not missing.lacks(np.arange(len(home.arena)))
    assert list(missing.pieces()) == []


def test_rows_that_never_changed_get_their_first_values_back(home: Home, missing: Missing) -> None:
    expected = [segment.rows.copy() for segment in home.arena.segments]
    for segment in home.arena.segments:
        segment.rows[...], segment.state[...] = np.nan, np.nan
    for piece in missing.pieces():
        missing.write(*piece, image_of(home, piece, 0, touched=0))
    for segment, rows in zip(home.arena.segments, expected, strict=True):
        assert np.array_equal(segment.rows, rows)
        assert not segment.state.any()
    assert not home.arena.epochs.changed_rows


def test_nothing_is_written_after_it_is_closed(home: Home, missing: Missing) -> None:
    piece = next(missing.pieces())
    missing.close()
    missing.write(*piece, image_of(home, piece, 7))
    assert missing.left == len(home.arena)
    assert 7 not in bits(home, slots_of(home, piece))


def test_an_empty_shard_lacks_nothing() -> None:
    job = small_job(Path("unused"), shards=3, rows=(2, 2))
    placement = Placement.of(job.model, 3)
    home = Home.of(job, placement, 2)
    missing = Missing(home, Parts.of(placement, K))
    assert missing.left == len(home.arena)
    assert not missing.lacks(np.empty(0, np.int64))
