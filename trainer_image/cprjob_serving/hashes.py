"""The hashes of ids, vectorised: CPR64, MurmurHash3 (Appleby, SMHasher) and XXH64 (Collet, specification 0.1.1).

CPR64 is this project's hash of texts. It uses integer arithmetic only, so it is equal on every machine. A changed
constant changes the rows of every saved model: tests have the values. MurmurHash3 and XXH64 are written in numpy,
because libraries take one text a call, under the interpreter's lock, and are no faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
U64 = NDArray[np.uint64]

WORD_BYTES = 8
#: 2**64 / golden ratio, odd: multiples of it are spread evenly and never repeat.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)
#: LOW_BYTES[k] masks the first k bytes of a little-endian word.
LOW_BYTES = np.array([(1 << (8 * k)) - 1 for k in range(WORD_BYTES + 1)], np.uint64)
_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
_BLOCK = 2 * WORD_BYTES
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


def mix64(values: U64) -> U64:
    """Return a new array with each value's 64 bits mixed (one to one): the finaliser of SplitMix64 (Steele 2014)."""
    mixed = values ^ (values >> np.uint64(30))
    mixed *= _FIRST_MULTIPLIER
    mixed ^= mixed >> np.uint64(27)
    mixed *= _SECOND_MULTIPLIER
    mixed ^= mixed >> np.uint64(31)
    return mixed


def hash_words(words: U64, lengths: U64) -> U64:
    """Hash strings of at most 8 bytes, each given as a little-endian word padded with zeros, and its length."""
    return mix64(mix64(words + GOLDEN) + (lengths + np.uint64(1)) * GOLDEN)


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """n byte strings: cell i is `data[starts[i] : starts[i] + lengths[i]]`.

    data: uint8, with a word of padding at the end. starts, lengths: int64 [n].
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> Cells:
        """Return the cells of some texts."""
        lengths = np.array([len(text) for text in texts], np.int64)
        data = np.frombuffer(b"".join(texts) + bytes(WORD_BYTES), np.uint8)
        return cls(data, np.cumsum(lengths) - lengths, lengths)

    @classmethod
    def of_arrow(cls, column: Any) -> Cells:
        """Return the cells of a pyarrow string or binary array without nulls."""
        _, offsets_buffer, data_buffer = column.buffers()
        stored = np.frombuffer(offsets_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
        offsets = stored.astype(np.int64)
        used = np.frombuffer(data_buffer, np.uint8)[: offsets[-1]] if data_buffer else np.zeros(0, np.uint8)
        return cls(np.concatenate((used, np.zeros(WORD_BYTES, np.uint8))), offsets[:-1], np.diff(offsets))

    def hashes(self) -> U64:
        """Return each cell's CPR64, uint64 [n]; the empty string is a value like another.

        The hash of a string is a function of its length and of the sum of its mixed words, each keyed by its place:
        a sum, because sums over ragged pieces need no loop, whatever the longest string is.
        """
        lengths = self.lengths
        words = -(-lengths // WORD_BYTES)
        ends = np.cumsum(words)
        place = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - words, words)
        loaded = self._everywhere[np.repeat(self.starts, words) + WORD_BYTES * place]
        left = np.minimum(np.repeat(lengths, words) - WORD_BYTES * place, WORD_BYTES)
        keyed = (loaded & LOW_BYTES[left]) + (place + 1).astype(np.uint64) * GOLDEN
        sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(mix64(keyed))))
        # An empty string has no word: its hash comes from its length, as if its one word were zero.
        totals = np.where(words > 0, sums[ends] - sums[ends - words], mix64(np.full(1, GOLDEN)))
        return mix64(totals + (lengths + 1).astype(np.uint64) * GOLDEN)

    def words(self, places: Ints, left: Ints) -> U64:
        """Return the 8 bytes from each place of `data` as a little-endian word, uint64 [k].

        places, left: int64 [k]. Only `left` bytes are taken, none if it is below 1; the others are 0.
        """
        return self._everywhere[np.where(left > 0, places, 0)] & LOW_BYTES[np.clip(left, 0, WORD_BYTES)]

    @property
    def _everywhere(self) -> U64:
        """A view with a word at every byte: unaligned on purpose."""
        return np.ndarray((len(self.data) - WORD_BYTES + 1,), "<u8", self.data, strides=(1,))


def hashes(cells: Cells, ids: str, seed: int) -> U64:
    """Return the hash of each cell, uint64 [n]. ids: `CPR64`, which has no seed, `XXH64`, `Murmur3` or `Dynamic`.

    The keys of `Dynamic` are XXH64. Raises ValueError for any other name.
    """
    match ids:
        case "CPR64":
            return cells.hashes()
        case "XXH64" | "Dynamic":
            return xxh64(cells, seed)
        case "Murmur3":
            return murmur3(cells, seed)
        case _:
            raise ValueError(f"{ids!r} is not a hash")


def rotated(words: U64, bits: int) -> U64:
    """Return each word with its bits rotated to the left, uint64 [n]. bits: in (0, 64)."""
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def murmur3(cells: Cells, seed: int) -> U64:
    """Return the first 64 bits of each cell's MurmurHash3_x64_128, uint64 [n]. seed: in [0, 2**32)."""
    blocks = cells.lengths // _BLOCK
    first, second = (np.full(len(blocks), seed, np.uint64) for _ in range(2))
    block, running = 0, np.flatnonzero(blocks)
    while len(running):
        at, whole = cells.starts[running] + block * _BLOCK, np.full(len(running), WORD_BYTES)
        low, high = first[running] ^ _low(cells.words(at, whole)), second[running]
        low = (rotated(low, 27) + high) * np.uint64(5) + np.uint64(0x52DCE729)
        high ^= _high(cells.words(at + WORD_BYTES, whole))
        high = (rotated(high, 31) + low) * np.uint64(5) + np.uint64(0x38495AB5)
        first[running], second[running] = low, high
        block += 1
        running = running[blocks[running] > block]
    at, left = cells.starts + blocks * _BLOCK, cells.lengths % _BLOCK
    # A word without bytes is 0, and changes nothing.
    first ^= _low(cells.words(at, left))
    second ^= _high(cells.words(at + WORD_BYTES, left - WORD_BYTES))
    lengths = cells.lengths.astype(np.uint64)
    second ^= lengths
    first = (first ^ lengths) + second
    return _finished(first) + _finished(second + first)


def _low(words: U64) -> U64:
    return rotated(words * _C1, 31) * _C2


def _high(words: U64) -> U64:
    return rotated(words * _C2, 33) * _C1


def _finished(values: U64) -> U64:
    """Mix each value's 64 bits: `fmix64` of the reference."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))


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
    """Return the hash of the whole stripes of some cells, uint64 [k]. striped: int64 [k], their places, ascending."""
    keys = (seed + int(_P1) + int(_P2), seed + int(_P2), seed, seed - int(_P1))
    lanes = [_keyed(len(stripes), key) for key in keys]
    stripe, running = 0, striped
    while len(running):
        at = cells.starts[running] + stripe * _STRIPE
        for place, lane in enumerate(lanes):
            words = cells.words(at + place * WORD_BYTES, np.full(len(at), WORD_BYTES))
            lane[running] = _round(lane[running], words)
        stripe += 1
        running = running[stripes[running] > stripe]
    ended = [lane[striped] for lane in lanes]
    hashes = rotated(ended[0], 1) + rotated(ended[1], 7) + rotated(ended[2], 12) + rotated(ended[3], 18)
    for lane in ended:
        hashes = (hashes ^ _round(np.zeros(len(lane), np.uint64), lane)) * _P1 + _P4
    return hashes


def _round(accumulators: U64, words: U64) -> U64:
    return rotated(accumulators + words * _P2, 31) * _P1


def _keyed(count: int, key: int) -> U64:
    return np.full(count, key % 2**64, np.uint64)
