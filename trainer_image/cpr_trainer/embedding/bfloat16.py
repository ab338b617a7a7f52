"""Conversions between float32 and bfloat16, which is its upper half. Arrays hold the bits of bfloat16 as uint16."""

from __future__ import annotations

from functools import cache
from math import isfinite
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cpr_contract.choices import Precision
from cpr_trainer.arrays import Floats, Halves, Ints, Values
from cprjob_serving.hashes import GOLDEN, mix64

#: The types of arrays of values.
DTYPES: dict[Precision, type[np.float32 | np.uint16]] = {"fp32": np.float32, "bf16": np.uint16}
#: Values at a time: intermediate results stay in the cache.
_BLOCK = 1 << 16
_NAN = 0x7FC0
#: Random bits of rows.
Keys = NDArray[np.uint32]
#: Columns that take their random bits from one hashed word.
_PER_WORD = 2


def narrow(values: Floats) -> Halves:
    """Round values, float32 [k, D], to the nearest bfloat16, ties to even; NaN stays NaN."""
    flat = values.reshape(-1)
    halves = np.empty(len(flat), np.uint16)
    for first in range(0, len(flat), _BLOCK):
        block = slice(first, first + _BLOCK)
        bits = flat[block].view(np.uint32)
        rounded = bits >> 16
        rounded &= 1
        rounded += 0x7FFF
        rounded += bits
        rounded >>= 16
        halves[block] = rounded
        halves[block][np.isnan(flat[block])] = _NAN
    return halves.reshape(values.shape)


def widen(halves: Halves) -> Floats:
    """Return the same values as float32, of the same shape."""
    bits = np.empty(halves.shape, np.uint32)
    np.left_shift(halves, 16, out=bits, dtype=np.uint32)
    return bits.view(np.float32)


def converted(values: Values, dtype: np.dtype[Any]) -> Values:
    """Return values in a type, float32 or uint16 for bfloat16, rounded to nearest; copies only to convert."""
    if values.dtype == dtype:
        return values
    return narrow(cast(Floats, values)) if dtype == np.uint16 else widen(cast(Halves, values))


def as_floats(values: Values) -> Floats:
    """Return values as float32; copies only to convert."""
    return cast(Floats, converted(values, np.dtype(np.float32)))


def rounding_keys(numbers: Ints, draw: int) -> Keys:
    """Return the keys by which an update rounds rows, [k]. numbers: int64 [k], of the rows. draw: names the update."""
    keys = mix64(mix64(np.array([draw], np.uint64)) + numbers.view(np.uint64) * GOLDEN)
    return keys.astype(np.uint32)  # the lower halves


def round_stochastically(values: Floats, keys: Keys, out: Halves) -> None:
    """Round values to one of the two nearest bfloat16, the farther one with the less probability, so that means stay.

    values: float32 [k, D], overwritten. keys: `rounding_keys` of the rows. out: uint16 [k, D]. The choice is a hash of
    the row's number, the column and the update: the same bits whenever the update is repeated, on any number of shards.
    NaN and infinite values stay, and so do those that are bfloat16 already.
    """
    flat = values.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        finite = isfinite(flat @ flat)  # far cheaper than a look at each value
    invalid = None if finite else np.isnan(values)
    # The keys are mixed already, so a product with a random number is enough to part the columns.
    width = -(-values.shape[1] // _PER_WORD)
    factors, terms = _columns(width, 1 << len(keys).bit_length())
    words = np.repeat(keys, width).reshape(-1, width)
    words *= factors[: len(keys)]
    words += terms[: len(keys)]
    words ^= words >> np.uint32(16)
    # Below the kept half of each value are 16 bits: adding as many random ones carries with that probability.
    bits = values.view(np.uint32)
    bits += words.view(np.uint16)[:, : values.shape[1]]
    bits >>= np.uint32(16)
    out[...] = bits
    if invalid is not None:
        out[invalid] = _NAN


@cache
def _columns(words: int, rows: int) -> tuple[Keys, Keys]:
    """Return two random numbers for the columns of each word, [rows, words] each; the first ones are odd.

    All rows are equal: products of whole arrays take a third of the time of products with a short row. Updates come in
    blocks, so few powers of two of rows are in use.
    """
    bits = np.tile(mix64(np.arange(words, dtype=np.uint64) + GOLDEN), (rows, 1))
    return bits.astype(np.uint32) | np.uint32(1), (bits >> np.uint64(32)).astype(np.uint32)
