"""The published hashes give what their authors publish."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from cpr_contract.model import TableSpec
from cprjob_serving.hashes import Cells, murmur3, xxh64
from support.plain_batches import single_ids
from support.table_data import Click, everything, read, write


def cells(*texts: bytes) -> Cells:
    return Cells.of_arrow(pa.array(texts, pa.binary()))


def test_slice_of_an_array_is_hashed_from_its_own_place() -> None:
    part = pa.array([b"12", b"3", b"-45", b"", b"6"], pa.binary()).slice(2, 2)
    assert Cells.of_arrow(part).hashes().tolist() == cells(b"-45", b"").hashes().tolist()
    assert cells().hashes().tolist() == []


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
