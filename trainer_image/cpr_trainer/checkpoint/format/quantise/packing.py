"""Codes of 2 to 8 bits, packed without a gap: eight codes at a time, in one 64-bit word."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
