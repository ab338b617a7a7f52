from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_trainer.hashing import key64, scale_to
from cprjob_serving.hashes import GOLDEN, Cells, hash_words, mix64

M = 2**64 - 1


def python_mix(value: int) -> int:
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & M
    value = (value ^ value >> 27) * 0x94D049BB133111EB & M
    return value ^ value >> 31


def python_hash(text: bytes) -> int:
    golden = 0x9E3779B97F4A7C15
    words = [int.from_bytes(text[k : k + 8], "little") for k in range(0, max(len(text), 1), 8)]
    total = sum(python_mix(word + (k + 1) * golden & M) for k, word in enumerate(words))
    return python_mix(total + (len(text) + 1) * golden & M)


def hash_all(texts: list[bytes]) -> np.ndarray:
    lengths = np.array([len(text) for text in texts], np.int64)
    data = np.frombuffer(b"".join(texts) + bytes(8), np.uint8)
    return Cells(data, np.cumsum(lengths) - lengths, lengths).hashes()


def test_mix64_is_the_finaliser_of_splitmix64() -> None:
    # The first two outputs of the published generator, started at 0.
    state = np.array([1, 2], np.uint64) * GOLDEN
    assert [hex(value) for value in mix64(state)] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4"]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=30))
def test_strings_hash_as_a_plain_loop_would(texts: list[bytes]) -> None:
    assert hash_all(texts).tolist() == [python_hash(text) for text in texts]


def test_hashes_never_change() -> None:
    # These values are in saved models: a change of the hash needs a new contract version.
    texts = [b"", b"0", b"77dabff5e9", b"a" * 1000]
    assert [f"{value:016x}" for value in hash_all(texts)] == [
        "a706dd2f4d197e6f",
        "5fbf9b9a96454c31",
        "6f3901aff6a0db7a",
        "1001c8d6466bbc6f",
    ]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=8), min_size=1, max_size=20))
def test_short_strings_may_be_given_as_words(texts: list[bytes]) -> None:
    words = np.array([int.from_bytes(text, "little") for text in texts], np.uint64)
    lengths = np.array([len(text) for text in texts], np.uint64)
    assert hash_words(words, lengths).tolist() == hash_all(texts).tolist()


def test_keys_depend_on_every_part_and_take_any_integer() -> None:
    keys = [int(key64(*parts)[0]) for parts in [(), (0,), (1,), (0, 1), (1, 0), (-1,), (2**64 - 2,), (2**70,)]]
    assert len(set(keys)) == len(keys) - 1, "only 2**70 = 0 modulo 2**64"


@settings(deadline=None)
@given(st.integers(1, 2**32), st.lists(st.integers(0, M), min_size=1))
def test_scaling_stays_below_the_bound(bound: int, hashes: list[int]) -> None:
    assert scale_to(np.array(hashes, np.uint64), bound).tolist() == [(h >> 32) * bound >> 32 for h in hashes]
