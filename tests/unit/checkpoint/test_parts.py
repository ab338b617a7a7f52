"""Parts: how large they are, and what the bytes of one are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_trainer.checkpoint.format.parts import MIB, PartError, Shape, rows_per_part, shape_of

widths = st.integers(1, 70_000).map(lambda floats: 4 * floats)


@given(rows=st.integers(1, 10**10), row_bytes=widths)
def test_parts_are_neither_too_large_nor_too_small(rows: int, row_bytes: int) -> None:
    size = rows_per_part(rows, row_bytes)
    assert MIB <= size * row_bytes <= max(64 * MIB, MIB + row_bytes)
    if 96 * MIB <= rows * row_bytes <= 96 * 64 * MIB:
        assert -(-rows // size) <= 96 + 1


@pytest.mark.parametrize(
    ("rows", "row_bytes", "size"),
    [
        (1, 68, 15_421),  # 1 MiB
        (9_600_000, 68, 100_000),  # a 96th
        (96_000_000, 68, 986_895),  # 64 MiB
        (10, 1 << 30, 1),
    ],
)
def test_plans(rows: int, row_bytes: int, size: int) -> None:
    assert rows_per_part(rows, row_bytes) == size


@given(
    places=st.sets(st.integers(0, 3000), min_size=1).map(sorted),
    stretch=st.sampled_from([1, 7, 1000]),
    start=st.integers(0, 2**43),
)
def test_places_come_back_from_the_head(places: list[int], stretch: int, start: int) -> None:
    stretched = np.array(places) * stretch + start
    shape = shape_of(stretched, 5, 32, state=1)
    head = shape.head(stretched)
    assert len(head) == shape.head_bytes
    assert len(head) % 8 == 0
    assert shape.size_bytes == len(head) + len(stretched) * 6 * 4
    assert np.array_equal(shape.places(bytearray(head)), stretched)


@pytest.mark.parametrize(
    ("places", "extra"),
    [
        ([7, 8, 9, 10], 0),  # one after another: nothing
        ([7, 9, 10, 71], 16),  # a bitmap of 65 bits, or 16 bytes of offsets
        ([7, 8, 9, 11], 8),  # a bitmap of 5 bits
        ([7, 100_000], 8),  # offsets
    ],
)
def test_places_take_as_little_as_they_can(places: list[int], extra: int) -> None:
    assert shape_of(np.array(places), 1, 32, state=0).head_bytes == 40 + extra


def test_the_bytes_of_a_head_are_these() -> None:
    places = np.array([5, 7, 8])
    magic, rest = "4350525041525432", "02000000 0800 0100 0300000000000000 0500000000000000 0400000000000000"
    assert shape_of(places, 2, 8, state=1).head(places) == bytes.fromhex(magic + rest + "b000000000000000")


GOOD = Shape(dim=2, bits=32, state=1, rows=3, first=5, span=40)


@pytest.mark.parametrize(
    "other",
    [
        replace(GOOD, dim=3),
        replace(GOOD, bits=8),
        replace(GOOD, state=0),
        replace(GOOD, rows=4, span=40),
        replace(GOOD, first=4),
        replace(GOOD, span=41),
    ],
)
def test_the_head_of_another_part_is_refused(other: Shape) -> None:
    head = GOOD.head(np.array([5, 9, 44]))
    with pytest.raises(PartError, match="begins with"):
        other.places(head)


def test_places_outside_of_the_span_are_refused() -> None:
    wide = replace(GOOD, span=1000)
    offsets = bytearray(wide.head(np.array([5, 9, 1004])))
    offsets[46] = 0xFF
    with pytest.raises(PartError):
        wide.places(offsets)
    bitmap = bytearray(GOOD.head(np.array([5, 9, 44])))
    bitmap[40] |= 1
    with pytest.raises(PartError, match="4 places for 3 rows"):
        GOOD.places(bitmap)
