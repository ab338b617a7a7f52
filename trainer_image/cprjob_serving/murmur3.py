"""MurmurHash3_x64_128 of many texts at once (Appleby, SMHasher)."""

from __future__ import annotations

import numpy as np

from cprjob_serving.cells import Cells, rotated
from cprjob_serving.cpr64 import U64, WORD_BYTES

_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
_BLOCK = 2 * WORD_BYTES


def murmur3(cells: Cells, seed: int) -> tuple[U64, U64]:
    """Return the first and the second 64 bits of each cell's hash, uint64 [n] each. seed: in [0, 2**32)."""
    blocks = cells.lengths // _BLOCK
    first, second = (np.full(len(blocks), seed, np.uint64) for _ in range(2))
    turn, running = 0, np.flatnonzero(blocks)
    while len(running):
        at, whole = cells.starts[running] + turn * _BLOCK, np.full(len(running), WORD_BYTES)
        low, high = first[running] ^ _low(cells.words(at, whole)), second[running]
        low = (rotated(low, 27) + high) * np.uint64(5) + np.uint64(0x52DCE729)
        high ^= _high(cells.words(at + WORD_BYTES, whole))
        high = (rotated(high, 31) + low) * np.uint64(5) + np.uint64(0x38495AB5)
        first[running], second[running] = low, high
        turn += 1
        running = running[blocks[running] > turn]
    at, left = cells.starts + blocks * _BLOCK, cells.lengths % _BLOCK
    # A word without bytes is 0, and changes nothing.
    first ^= _low(cells.words(at, left))
    second ^= _high(cells.words(at + WORD_BYTES, left - WORD_BYTES))
    lengths = cells.lengths.astype(np.uint64)
    first, second = _sums(first ^ lengths, second ^ lengths)
    return _sums(_finished(first), _finished(second))


def _low(words: U64) -> U64:
    return rotated(words * _C1, 31) * _C2


def _high(words: U64) -> U64:
    return rotated(words * _C2, 33) * _C1


def _sums(first: U64, second: U64) -> tuple[U64, U64]:
    total = first + second
    return total, second + total


def _finished(values: U64) -> U64:
    """Mix each value's 64 bits: `fmix64` of the reference."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))
