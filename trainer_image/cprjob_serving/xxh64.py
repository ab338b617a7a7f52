"""XXH64 of many texts at once (Collet, xxHash fast digest algorithm, specification 0.1.1).

In numpy, because libraries take one text a call, under the interpreter's lock, and are no faster.
"""

from __future__ import annotations

import numpy as np

from cprjob_serving.arrays import Ints
from cprjob_serving.cells import Cells, rotated
from cprjob_serving.cpr64 import U64, WORD_BYTES

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_STRIPE = 4 * WORD_BYTES
_HALF = 4


def xxh64(cells: Cells, seed: int) -> U64:
    """Return the XXH64 of each cell, uint64 [n]. seed: in [0, 2**64)."""
    stripes = cells.lengths // _STRIPE
    hashes = _keyed(len(stripes), seed + int(_P5))
    striped = np.flatnonzero(stripes)
    hashes[striped] = _converged(cells, striped, stripes, seed)
    hashes += cells.lengths.astype(np.uint64)
    at, left = cells.starts + stripes * _STRIPE, cells.lengths % _STRIPE
    while len(here := np.flatnonzero(left >= WORD_BYTES)):
        mixed = hashes[here] ^ _round(np.zeros(len(here), np.uint64), cells.words(at[here], left[here]))
        hashes[here] = rotated(mixed, 27) * _P1 + _P4
        at[here] += WORD_BYTES
        left[here] -= WORD_BYTES
    here = np.flatnonzero(left >= _HALF)
    mixed = hashes[here] ^ (cells.words(at[here], np.full(len(here), _HALF)) * _P1)
    hashes[here] = rotated(mixed, 23) * _P2 + _P3
    at[here] += _HALF
    left[here] -= _HALF
    while len(here := np.flatnonzero(left)):
        mixed = hashes[here] ^ (cells.data[at[here]].astype(np.uint64) * _P5)
        hashes[here] = rotated(mixed, 11) * _P1
        at[here] += 1
        left[here] -= 1
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    return hashes ^ (hashes >> np.uint64(32))


def _converged(cells: Cells, striped: Ints, stripes: Ints, seed: int) -> U64:
    """Return what the whole stripes of some cells come to, uint64 [k]. striped: int64 [k], their places, ascending."""
    keys = (seed + int(_P1) + int(_P2), seed + int(_P2), seed, seed - int(_P1))
    lanes = [_keyed(len(stripes), key) for key in keys]
    turn, running = 0, striped
    while len(running):
        at = cells.starts[running] + turn * _STRIPE
        for place, lane in enumerate(lanes):
            words = cells.words(at + place * WORD_BYTES, np.full(len(at), WORD_BYTES))
            lane[running] = _round(lane[running], words)
        turn += 1
        running = running[stripes[running] > turn]
    ended = [lane[striped] for lane in lanes]
    hashes = rotated(ended[0], 1) + rotated(ended[1], 7) + rotated(ended[2], 12) + rotated(ended[3], 18)
    for lane in ended:
        hashes = (hashes ^ _round(np.zeros(len(lane), np.uint64), lane)) * _P1 + _P4
    return hashes


def _round(accumulators: U64, words: U64) -> U64:
    return rotated(accumulators + words * _P2, 31) * _P1


def _keyed(count: int, key: int) -> U64:
    return np.full(count, key % 2**64, np.uint64)
