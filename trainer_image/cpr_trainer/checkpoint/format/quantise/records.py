"""Rows as records of fixed size: the ends of the row's range, float32 each, then its codes, packed.

A record stands alone, so any range of rows of a save can be read. Value d of a row is low + (high - low) * code[d] /
(2**bits - 1), so both ends are met exactly, and rows that were decoded once encode to records that decode to the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cpr_contract.spec import Bits
from cpr_trainer.arrays import Floats
from cpr_trainer.checkpoint.format.quantise.packing import Bytes, pack, packed_bytes, unpack
from cpr_trainer.checkpoint.format.quantise.ranges import search_range
from cpr_trainer.errors import DivergedError

_FLOAT = np.dtype("<f4")
#: Bits of a value that is stored as it is.
EXACT: Bits = 32
#: With that many bits the full range is as good as any other.
_FULL_RANGE = 8
_ENDS_BYTES = 2 * _FLOAT.itemsize
#: Of twice this, differences still fit a float32.
_HIGHEST = np.finfo(np.float32).max / 2
#: Values at a time: intermediate results stay in the cache. They are worked on with a row in each column, so that what
#: is done to every row alike lies side by side.
_BLOCK = 1 << 16


def record_bytes(dim: int, bits: Bits) -> int:
    """Return the size of the record of one row [dim]."""
    return _FLOAT.itemsize * dim if bits == EXACT else _ENDS_BYTES + packed_bytes(dim, bits)


def encode_rows(rows: Floats, bits: Bits) -> Bytes:
    """Return the records of rows, float32 [n, D], as uint8 [n, record_bytes]: 32 bits as they are, maybe no copy.

    With 8 bits a value is off by at most half a 255th of its row's range; with fewer the sum of a row's squared errors
    is made small. Raises DivergedError for values that fewer than 32 bits cannot hold: infinite ones, those that are no
    number, or larger than half the largest float32.
    """
    if bits == EXACT:
        return np.ascontiguousarray(rows, _FLOAT).view(np.uint8)
    _check(rows)
    records = np.empty((len(rows), record_bytes(rows.shape[1], bits)), np.uint8)
    levels = (1 << bits) - 1
    for block in _blocks(rows):
        columns = np.ascontiguousarray(rows[block].T)
        low, high = _ends(columns, levels, search=bits < _FULL_RANGE)
        records[block, :_ENDS_BYTES] = np.stack((low, high), axis=1).astype(_FLOAT, copy=False).view(np.uint8)
        records[block, _ENDS_BYTES:] = pack(_codes(columns, low, high, levels).T, bits)
    return records


def decode_rows(records: Bytes, dim: int, bits: Bits) -> Floats:
    """Return the rows [n, dim] of records, uint8 [n, record_bytes], C-contiguous."""
    if bits == EXACT:
        return records.view(_FLOAT).astype(np.float32, copy=False)
    rows = np.empty((len(records), dim), np.float32)
    fractions = np.arange(1 << bits) / ((1 << bits) - 1)
    for block in _blocks(rows):
        ends = np.ascontiguousarray(records[block, :_ENDS_BYTES]).view(_FLOAT).astype(np.float64)
        low, high = ends.T
        columns = fractions[np.ascontiguousarray(unpack(records[block, _ENDS_BYTES:], dim, bits).T)]
        columns *= high - low
        columns += low
        rows[block] = columns.T
    return rows


def _blocks(rows: Floats) -> Iterator[slice]:
    """Yield slices of rows whose values stay in the cache."""
    size = max(1, _BLOCK // rows.shape[1])
    for first in range(0, len(rows), size):
        yield slice(first, first + size)


def _check(rows: Floats) -> None:
    for block in _blocks(rows):
        sound = (np.abs(rows[block]) <= _HIGHEST).all(axis=1)  # what is no number is not less either
        if not sound.all():
            row = block.start + int(np.argmin(sound))
            raise DivergedError(
                f"An embedding row (number {row} of those being saved) holds values that are infinite or no numbers.",
                "Start again with a lower learning rate; snapshots.quantisation.mode Exact saves such rows unchanged.",
            )


def _ends(columns: Floats, levels: int, *, search: bool) -> tuple[Floats, Floats]:
    """Return the ends of the range of each row, float32 [n] each. columns: float32 [D, n], a row in each column."""
    least, greatest = columns.min(axis=0), columns.max(axis=0)
    if not search:
        return least, greatest
    span = greatest - least
    low, high = search_range((columns - least) / np.where(span > 0, span, 1), levels)
    # Where the full range stays, its ends stay to the bit.
    return least + low * span, np.where(high < 1, least + high * span, greatest)


def _codes(columns: Floats, low: Floats, high: Floats, levels: int) -> Bytes:
    """Return the code of each value, uint8 [D, n]. columns: float32 [D, n], a row in each column."""
    span = high - low
    scaled = columns - low
    scaled /= np.where(span > 0, span, 1)
    scaled *= levels
    np.rint(scaled, out=scaled)
    return np.clip(scaled, 0, levels, out=scaled).astype(np.uint8)
