"""bfloat16: the upper half of a float32. numpy does not know it, so its bits are uint16 here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Floats

Halves = NDArray[np.uint16]

#: Values at a time: intermediate results stay in the cache.
_BLOCK = 1 << 16
_NO_NUMBER = 0x7FC0


def narrow(values: Floats) -> Halves:
    """Round values, float32 [k, D], to the nearest bfloat16, ties to even; what is no number stays none."""
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
        halves[block][np.isnan(flat[block])] = _NO_NUMBER
    return halves.reshape(values.shape)


def widen(halves: Halves) -> Floats:
    """Return the same values as float32, of the same shape."""
    bits = halves.astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)
