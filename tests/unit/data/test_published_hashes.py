"""The published hashes give what their authors publish."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cpr_contract.model import TableSpec
from cprjob_serving.hashes import Cells, murmur3, xxh64
from support.plain_batches import single_ids
from support.table_data import Click, everything, read, write

PRIME32 = 0x9E3779B1


def cells(*texts: bytes) -> Cells:
    return Cells.of_arrow(pa.array(texts, pa.binary()))


def sanity_buffer(length: int) -> bytes:
    """The bytes that xxHash's own self-test hashes."""
    key, found = PRIME32, bytearray()
    for _ in range(length):
        found.append(key >> 56)
        key = key * 0x9E3779B185EBCA8D % 2**64
    return bytes(found)


@pytest.mark.parametrize(
    ("length", "seed", "expected"),
    [
        (0, 0, 0xEF46DB3751D8E999),
        (0, PRIME32, 0xAC75FDA2929B17EF),
        (1, 0, 0xE934A84ADB052768),
        (1, PRIME32, 0x5014607643A9B4C3),
        (4, 0, 0x9136A0DCA57457EE),
        (14, 0, 0x8282DCC4994E35C8),
        (14, PRIME32, 0xC3BD6BF63DEB6DF0),
        (222, 0, 0xB641AE8CB691C174),
        (222, PRIME32, 0x20CB8AB7AE10C14A),
    ],
)
def test_xxh64_passes_the_self_test_of_its_author(length: int, seed: int, expected: int) -> None:
    assert xxh64(cells(sanity_buffer(length)), seed).tolist() == [expected]


def test_murmur3_has_the_verification_value_of_smhasher() -> None:
    # Of SMHasher's VerificationTest: keys of 0 to 255 bytes, seeds from 256 down, then the hash of all hashes.
    found = b""
    for length in range(256):
        first, second = murmur3(cells(bytes(range(length))), 256 - length)
        found += struct.pack("<QQ", int(first[0]), int(second[0]))
    first, _ = murmur3(cells(found), 0)
    assert int(first[0]) % 2**32 == 0x6384BA69


def test_texts_of_all_lengths_are_hashed_at_once_as_each_alone() -> None:
    random = np.random.default_rng(1)
    texts = [random.bytes(length) for length in [*range(70), 300, 5, 1000, 0]]
    together = cells(*texts)
    assert xxh64(together, 7).tolist() == [int(xxh64(cells(text), 7)[0]) for text in texts]
    assert murmur3(together, 7)[0].tolist() == [int(murmur3(cells(text), 7)[0][0]) for text in texts]
    assert xxh64(cells(), 7).tolist() == murmur3(cells(), 7)[0].tolist() == []


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_a_table_has_the_rows_that_its_hash_and_seed_give(tmp_path: Path, ending: str) -> None:
    # Saved models stand on them; docs/hashing.md has them.
    rows = [Click(1, user=user, item=item) for user, item in (("a", 42), (None, -7), ("é", None))]
    tables = TableSpec("user", 1000, ids="XXH64"), TableSpec("item", 1000, ids="Murmur3", hash_seed=7)
    ids = single_ids(everything(read(write(rows, tmp_path, ending), tables)))
    assert ids.tolist() == [[955, 700], [921, 247], [848, 351]]
    seeded = replace(tables[0], hash_seed=1), replace(tables[1], hash_seed=0)
    other = single_ids(everything(read(write(rows, tmp_path, ending), seeded)))
    assert (other != ids).all()


def test_the_page_has_the_hashes_that_are_computed() -> None:
    page = (Path(__file__).parents[3] / "docs" / "hashing.md").read_text("utf-8")
    lines = re.findall(r"^\| (.+) \| ([07]) \| `(\w{16})` \| `(\w{16})` \| (?:`(\w{16})` )?\|$", page, re.MULTILINE)
    assert len(lines) == 7
    for text, seed, *told in lines:
        of = cells(re.sub(r"^`(.+)`.*$|^\(empty\)$", r"\1", text).encode())
        found = xxh64(of, int(seed)), murmur3(of, int(seed))[0], of.hashes()
        assert told[: 2 + (seed == "0")] == [f"{int(each[0]):016x}" for each in found][: 2 + (seed == "0")]
    own = int(cells(b"42").hashes()[0])
    assert f"row {int(xxh64(cells(b'42'), 0)[0]) % 1000} by XXH64" in page
    assert f"row {int(murmur3(cells(b'42'), 0)[0][0]) % 1000} by Murmur3 and row {own % 1000} by CPR64" in page
