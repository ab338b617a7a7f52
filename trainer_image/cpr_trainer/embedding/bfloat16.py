"""Conversions between float32 and bfloat16, the upper half of a float32, whose bits are uint16 here."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from cpr_trainer.arrays import Floats, Halves, Values

#: Values at a time: intermediate results stay in the cache.
_BLOCK = 1 << 16
_NAN = 0x7FC0


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
    bits = halves.astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def converted(values: Values, dtype: np.dtype[Any]) -> Values:
    """Return values in a type, float32 or uint16 for bfloat16, rounded to nearest; copies only to convert."""
    if values.dtype == dtype:
        return values
    return narrow(cast(Floats, values)) if dtype == np.uint16 else widen(cast(Halves, values))


def as_floats(values: Values) -> Floats:
    """Return values as float32; copies only to convert."""
    return cast(Floats, converted(values, np.dtype(np.float32)))
