"""CPR64, our own hash of texts, vectorised: integer arithmetic only, so equal on every machine.

Changing a constant changes the meaning of every saved model: tests hold the values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

WORD_BYTES = 8
#: 2**64 / golden ratio, odd: multiples of it are spread evenly and never repeat.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)
#: LOW_BYTES[k] keeps the first k bytes of a little-endian word.
LOW_BYTES = np.array([(1 << (8 * k)) - 1 for k in range(WORD_BYTES + 1)], np.uint64)


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


def hash_strings(data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> U64:
    """Hash n byte strings of any lengths, uint64 [n].

    String i is `data[starts[i] : starts[i] + lengths[i]]`; `data` must go on for 8 bytes after the last string.
    The hash of a string is a function of its length and of the sum of its mixed words, each keyed by its place:
    a sum, because sums over ragged pieces need no loop, whatever the longest string is.
    """
    words = -(-lengths // WORD_BYTES)
    ends = np.cumsum(words)
    place = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - words, words)
    # A view with a word at every byte: unaligned on purpose.
    everywhere = np.ndarray((max(len(data) - WORD_BYTES + 1, 0),), "<u8", data, strides=(1,))
    loaded = everywhere[np.repeat(starts, words) + WORD_BYTES * place]
    left = np.minimum(np.repeat(lengths, words) - WORD_BYTES * place, WORD_BYTES)
    keyed = (loaded & LOW_BYTES[left]) + (place + 1).astype(np.uint64) * GOLDEN
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(mix64(keyed))))
    # An empty string has no word: its hash comes from its length, as if its one word were zero.
    totals = np.where(words > 0, sums[ends] - sums[ends - words], mix64(np.full(1, GOLDEN)))
    return mix64(totals + (lengths + 1).astype(np.uint64) * GOLDEN)
