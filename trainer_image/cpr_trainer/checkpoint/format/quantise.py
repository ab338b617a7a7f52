"""Quantised rows in saves, while training keeps exact ones (Check-N-Run, Eisenman et al., NSDI 2022).

Codes of 2 to 8 bits are packed without gaps, eight at a time in a 64-bit word. The range of values of a row's codes is
narrower than from least to greatest if that errs less: with few levels, cutting an outlier off a little costs less than
wider steps for all. A restore reads rounded values, so fewer expected restores allow fewer bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cpr_contract.choices import Bits, Precision
from cpr_trainer.arrays import Floats, Values
from cpr_trainer.embedding.bfloat16 import as_floats, widen
from cpr_trainer.errors import DivergedError

Bytes = NDArray[np.uint8]
#: Bits of a value in a part: those of memory, or fewer.
ValueBits = Literal[Bits, 16]

_GROUP = 8
_WORD = np.dtype("<u8")
#: Neighbours are joined three times: codes, pairs of them, fours.
_STAGES = (0, 1, 2)

_REFITS = 3
#: A gain of less than this part of a step in each value is rounding: the full range stays.
_NOTICEABLE = 1e-3

_FLOAT = np.dtype("<f4")
#: The bits of a save with values as in memory, and those of such a value by its precision.
EXACT: Bits = 32
_IN_MEMORY: dict[Precision, ValueBits] = {"fp32": 32, "bf16": 16}
#: With this many bits the full range is as good as any other.
_FULL_RANGE = 8
_ENDS_BYTES = 2 * _FLOAT.itemsize
#: Differences of values up to this still fit a float32.
_HIGHEST = np.finfo(np.float32).max / 2
#: Values at a time: intermediate results stay in the cache. Each row is a column of them, so that the operations on all
#: rows are on contiguous values.
_BLOCK = 1 << 16


def packed_bytes(dim: int, bits: int) -> int:
    """Return the bytes of the codes of one row: dim * bits, rounded up to whole bytes."""
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
    """Return a word with the lowest `width` bits set in every (16 << stage) bits: the lower neighbours."""
    period = 16 << stage
    return np.uint64(sum(((1 << width) - 1) << start for start in range(0, 64, period)))


def _gap(bits: int, stage: int) -> np.uint64:
    """Return the bits between two neighbours that are not joined yet."""
    return np.uint64((8 - bits) << stage)


def search_range(shape: Floats, levels: int) -> tuple[Floats, Floats]:
    """Return the ends of the range with the least squared error that was found for each row, float32 [n] each.

    shape: float32 [D, n], a row in each column, moved and scaled so that it goes from 0 to 1, or all 0; the ends are on
    that scale, within [0, 1]. levels: the highest code. Never worse than the full range, up to rounding.

    It starts half a step inside the full range, which is best for evenly spread values. Then it alternates like
    k-means: round the values to the levels, and fit the levels to the values by least squares. The squared error is
    within 4 % of that of Check-N-Run's greedy search (40 steps), for a quarter of its work.
    """
    dim, rows = shape.shape
    low, high = np.zeros(rows, np.float32), np.ones(rows, np.float32)
    _, least = _round(shape, low, high, levels)
    least -= dim * (_NOTICEABLE / levels) ** 2
    inset = 0.5 / (levels + 1)
    start, end = np.full_like(low, inset), np.full_like(high, 1 - inset)
    for refit in range(_REFITS + 1):
        codes, error = _round(shape, start, end, levels)
        better = error < least
        least[better], low[better], high[better] = error[better], start[better], end[better]
        if refit < _REFITS:
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

    Inside [0, 1] the least and the greatest value get the lowest and the highest code, so the full range is best for
    values that were decoded before. If all codes are equal there is no line, and the full range is returned.
    """
    middle, mean = codes.mean(axis=0), shape.mean(axis=0)
    spread = codes - middle
    variance, covariance = np.einsum("ij,ij->j", spread, spread), np.einsum("ij,ij->j", spread, shape)
    step = covariance / np.maximum(variance, np.finfo(np.float32).tiny)
    low = mean - step * middle
    high = low + step * np.float32(levels)
    flat = step <= 0
    return np.where(flat, 0, np.maximum(low, 0)), np.where(flat, 1, np.minimum(high, 1))


def value_bits(bits: Bits, precision: Precision) -> ValueBits:
    """Return the bits of a value of a table with this precision, in a save of `bits`."""
    return _IN_MEMORY[precision] if bits == EXACT else bits


def precision_of(bits: ValueBits) -> Precision:
    """Return the precision of a table with values of `bits` in an exact save. A quantised one does not show it."""
    return "bf16" if bits == _IN_MEMORY["bf16"] else "fp32"


def record_bytes(dim: int, bits: ValueBits) -> int:
    """Return the size of the record of one row [dim]: the ends of its range, float32 each, then its packed codes.

    Value d of a row is low + (high - low) * code[d] / (2**bits - 1): both ends are exact, and decoded rows encode to
    records that decode to the same values.
    """
    return bits // 8 * dim if bits in _IN_MEMORY.values() or not dim else _ENDS_BYTES + packed_bytes(dim, bits)


def encode_rows(values: Values, bits: ValueBits) -> Bytes:
    """Return the records of rows, [n, D], as uint8 [n, record_bytes]: 32 or 16 bits as in memory, maybe no copy.

    With 8 bits a value is off by at most half a 255th of its row's range; with fewer the sum of a row's squared errors
    is made small. Raises DivergedError for values that fewer bits than in memory cannot hold:
    infinite ones, those that are no number, or larger than half the largest float32.
    """
    if bits in _IN_MEMORY.values() or not values.shape[1]:
        return np.ascontiguousarray(values).view(np.uint8)
    rows = as_floats(values)
    for block in _blocks(rows):
        sound = (np.abs(rows[block]) <= _HIGHEST).all(axis=1)  # false for NaN, too
        if not sound.all():
            row = block.start + int(np.argmin(sound))
            raise DivergedError(
                f"An embedding row (number {row} of those being saved) holds values that are infinite or no numbers.",
                "Start again with a lower learning rate; snapshots.quantisation.mode Exact saves such rows unchanged.",
            )
    records = np.empty((len(rows), record_bytes(rows.shape[1], bits)), np.uint8)
    levels = (1 << bits) - 1
    for block in _blocks(rows):
        columns = np.ascontiguousarray(rows[block].T)
        low, high = _ends(columns, levels, search=bits < _FULL_RANGE)
        records[block, :_ENDS_BYTES] = np.stack((low, high), axis=1).astype(_FLOAT, copy=False).view(np.uint8)
        records[block, _ENDS_BYTES:] = pack(_codes(columns, low, high, levels).T, bits)
    return records


def decode_rows(records: Bytes, dim: int, bits: ValueBits) -> Floats:
    """Return the rows, float32 [n, dim], of records, uint8 [n, record_bytes], C-contiguous."""
    if bits == EXACT or not dim:
        return records.view(_FLOAT).astype(np.float32, copy=False)
    if bits == _IN_MEMORY["bf16"]:
        return widen(records.view(np.uint16))
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
    """Yield slices of rows that fit into the cache."""
    size = max(1, _BLOCK // rows.shape[1])
    for first in range(0, len(rows), size):
        yield slice(first, first + size)


def _ends(columns: Floats, levels: int, *, search: bool) -> tuple[Floats, Floats]:
    """Return the ends of the range of each row, float32 [n] each. columns: float32 [D, n], a row in each column."""
    least, greatest = columns.min(axis=0), columns.max(axis=0)
    if not search:
        return least, greatest
    span = greatest - least
    low, high = search_range((columns - least) / np.where(span > 0, span, 1), levels)
    # The ends of the full range stay exact.
    return least + low * span, np.where(high < 1, least + high * span, greatest)


def _codes(columns: Floats, low: Floats, high: Floats, levels: int) -> Bytes:
    """Return the code of each value, uint8 [D, n]. columns: float32 [D, n], a row in each column."""
    span = high - low
    scaled = columns - low
    scaled /= np.where(span > 0, span, 1)
    scaled *= levels
    np.rint(scaled, out=scaled)
    return np.clip(scaled, 0, levels, out=scaled).astype(np.uint8)
