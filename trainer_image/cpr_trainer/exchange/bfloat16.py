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
    halves = np.empty(values.shape, np.uint16)
    rows = max(1, _BLOCK // values.shape[1])
    for first in range(0, len(values), rows):
        block = slice(first, first + rows)
        bits = values[block].view(np.uint32)
        rounded = bits >> 16
        rounded &= 1
        rounded += 0x7FFF
        rounded += bits
        rounded >>= 16
        halves[block] = rounded
        halves[block][np.isnan(values[block])] = _NO_NUMBER
    return halves


def widen(halves: Halves) -> Floats:
    """Return the same values as float32 [k, D]."""
    bits = halves.astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)
