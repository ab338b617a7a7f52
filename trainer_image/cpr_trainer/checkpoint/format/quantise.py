"""Rows in fewer bits, in saves alone: training goes on with what it has (Check-N-Run, Eisenman et al., NSDI 2022).

What a restore reads is not what was written, so the fewer restores are expected, the fewer bits a row needs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cpr_contract.choices import Bits
from cpr_trainer.arrays import Floats
from cpr_trainer.errors import DivergedError

# Codes of 2 to 8 bits, packed without a gap: eight codes at a time, in one 64-bit word.


Bytes = NDArray[np.uint8]

_GROUP = 8
_WORD = np.dtype("<u8")
#: Three times neighbours are joined: codes, pairs of them, fours.
_STAGES = (0, 1, 2)


def packed_bytes(dim: int, bits: int) -> int:
    """Return how many bytes the codes of one row take: dim * bits, rounded up to whole bytes."""
    return -(-dim * bits // 8)


def pack(codes: Bytes, bits: int) -> Bytes:
    """Return codes below 2**bits, uint8 [n, D], as uint8 [n, packed_bytes(D, bits)].

    Code d of a row lies in its bits from d * bits on; bit i of a row is bit i % 8 of its byte i // 8.
    """
    rows, dim = codes.shape
    groups = -(-dim // _GROUP)
    padded = np.zeros((rows, groups * _GROUP), np.uint8)
    padded[:, :dim] = codes
    words = padded.view(_WORD)
    for stage in _STAGES:
        low = _repeated(8 << stage, stage)
        words = (words & low) | ((words & ~low) >> _gap(bits, stage))
    packed = words.astype(_WORD, copy=False).view(np.uint8).reshape(rows, groups, _WORD.itemsize)[:, :, :bits]
    return packed.reshape(rows, groups * bits)[:, : packed_bytes(dim, bits)]


def unpack(packed: Bytes, dim: int, bits: int) -> Bytes:
    """Return the codes that `pack` packed, uint8 [n, dim]."""
    rows = len(packed)
    groups = -(-dim // _GROUP)
    padded = np.zeros((rows, groups * bits), np.uint8)
    padded[:, : packed.shape[1]] = packed
    spread = np.zeros((rows, groups, _WORD.itemsize), np.uint8)
    spread[:, :, :bits] = padded.reshape(rows, groups, bits)
    words = spread.reshape(rows, groups * _WORD.itemsize).view(_WORD)
    for stage in reversed(_STAGES):
        low = _repeated(bits << stage, stage)
        words = (words & low) | ((words & ~low) << _gap(bits, stage))
    return words.astype(_WORD, copy=False).view(np.uint8)[:, :dim]


def _repeated(width: int, stage: int) -> np.uint64:
    """Return a word whose lowest `width` bits are set, and so on in every (16 << stage) bits: the lower neighbours."""
    period = 16 << stage
    return np.uint64(sum(((1 << width) - 1) << start for start in range(0, 64, period)))


def _gap(bits: int, stage: int) -> np.uint64:
    """Return the bits between two neighbours that are not joined yet."""
    return np.uint64((8 - bits) << stage)


# The range of values that a row's codes stand for: narrower than from least to greatest, where that errs less.
#
# With few levels, an outlier that is cut off a little costs less than steps that are wider for all.


_REFITS = 3
#: A gain that is less than this part of a step in each value is rounding: the full range stays.
_NOTICEABLE = 1e-3


def search_range(shape: Floats, levels: int) -> tuple[Floats, Floats]:
    """Return the ends of the range with the least squared error that was found for each row, float32 [n] each.

    shape: float32 [D, n], a row in each column, moved and scaled so that it goes from 0 to 1, or all 0; the ends are on
    that scale, within [0, 1]. levels: the highest code. Never worse than the full range, up to rounding.

    Starts half a step inside the full range, which is best for evenly spread values, and goes on by turns as k-means
    does: round the values to the levels, then fit the levels to the values by least squares. This comes within 4 % of
    the squared error of Check-N-Run's greedy search (40 steps), for a quarter of its work.
    """
    dim, rows = shape.shape
    low, high = np.zeros(rows, np.float32), np.ones(rows, np.float32)
    _, least = _round(shape, low, high, levels)
    least -= dim * (_NOTICEABLE / levels) ** 2
    inset = 0.5 / (levels + 1)
    start, end = np.full_like(low, inset), np.full_like(high, 1 - inset)
    for turn in range(_REFITS + 1):
        codes, error = _round(shape, start, end, levels)
        better = error < least
        least[better], low[better], high[better] = error[better], start[better], end[better]
        if turn < _REFITS:
            start, end = _refit(shape, codes, levels)
    return low, high


def _round(shape: Floats, low: Floats, high: Floats, levels: int) -> tuple[Floats, Floats]:
    """Return each value's code, float32 [D, n], and each row's squared error, float32 [n]."""
    step = (high - low) / np.float32(levels)
    codes = shape - low
    codes /= step
    np.rint(codes, out=codes)
    np.clip(codes, 0, levels, out=codes)
    error = codes * step
    error += low
    error -= shape
    return codes, np.einsum("ij,ij->j", error, error)


def _refit(shape: Floats, codes: Floats, levels: int) -> tuple[Floats, Floats]:
    """Return the ends, within [0, 1], that fit values to codes best: a line through (code, value) by least squares.

    Inside [0, 1] the least and the greatest value go to the lowest and the highest code, so that what was decoded once
    has its full range for the best. Where all codes are equal there is no line, and the full range is returned.
    """
    middle, mean = codes.mean(axis=0), shape.mean(axis=0)
    spread = codes - middle
    variance, covariance = np.einsum("ij,ij->j", spread, spread), np.einsum("ij,ij->j", spread, shape)
    step = covariance / np.maximum(variance, np.finfo(np.float32).tiny)
    low = mean - step * middle
    high = low + step * np.float32(levels)
    flat = step <= 0
    return np.where(flat, 0, np.maximum(low, 0)), np.where(flat, 1, np.minimum(high, 1))


# Rows as records of fixed size: the ends of the row's range, float32 each, then its codes, packed.
#
# A record stands alone, so any range of rows of a save can be read. Value d of a row is
# low + (high - low) * code[d] / (2**bits - 1), so both ends are met exactly, and rows that were decoded once encode to
# records that decode to the same.


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
