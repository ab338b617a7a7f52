"""64-bit hashes of integers, vectorised: integer arithmetic only, so equal on every machine.

Sample order, synthetic data, and the first values of rows follow from these functions and from
`cprjob_serving.hashes`, which hashes ids. Changing a constant changes the meaning of every saved model: tests hold the
values.
"""

from __future__ import annotations

import numpy as np

from cprjob_serving.hashes import GOLDEN, U64, mix64


def key64(*parts: int) -> U64:
    """Hash a few integers (taken modulo 2**64) to a key, uint64 [1], for arrays to be combined with."""
    key = np.zeros(1, np.uint64)
    for part in parts:
        key = mix64((key ^ np.uint64(part % 2**64)) + GOLDEN)
    return key


def scale_to(hashes: U64, bound: int) -> U64:
    """Map hashes evenly onto [0, bound), bound <= 2**32, by their upper 32 bits: a product instead of a division."""
    return ((hashes >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32)
