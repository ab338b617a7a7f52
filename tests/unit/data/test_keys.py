"""The keys of dynamic tables: the whole hash of an id, equal in every format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash

from cpr_contract.model import DynamicSpec, TableSpec
from cpr_trainer.data import decode
from cpr_trainer.embedding.bags import Bags
from cpr_trainer.errors import DataError
from cprjob_serving.hashes import U64, Cells
from support.bag_data import TABLES, BagClick, write_bags
from support.plain_batches import single_ids
from support.table_data import FORMATS, Click, everything, read, write

KEYED = tuple(
    TableSpec(name, 10, ids="Dynamic", hash_seed=seed, dynamic=DynamicSpec())
    for name, seed in (("user", 0), ("item", 7))
)


def keys(seed: int, *texts: str) -> list[int]:
    """Return the keys of texts by the library of xxHash, as numbers with a sign."""
    found = [xxhash.xxh64_intdigest(text.encode(), seed) for text in texts]
    return [key - 2**64 if key >= 2**63 else key for key in found]


@pytest.mark.parametrize("ending", FORMATS)
def test_key_is_all_bits_of_the_hash_in_every_format(tmp_path: Path, ending: str) -> None:
    pairs = [("a", 42), ("007", -1), ("-1", 2**62), (None, 7), ("42", None)]
    rows = [Click(1, user=user, item=item) for user, item in pairs]
    ids = single_ids(everything(read(write(rows, tmp_path, ending), KEYED)))
    assert ids[:, 0].tolist() == keys(0, "a", "007", "-1", "", "42"), "a missing id is the empty text"
    assert ids[:, 1].tolist() == keys(7, "42", "-1", str(2**62), "7", "")
    assert ids.min() < 0 < ids.max(), "keys of both signs"


@pytest.mark.parametrize("ending", ["parquet", "csv", "tsv"])
def test_bags_of_keys_stand_beside_bags_of_rows(tmp_path: Path, ending: str) -> None:
    dynamic = TableSpec("tags", 10, "Mean", ids="Dynamic", hash_seed=3, dynamic=DynamicSpec())
    rows = [BagClick(tags=("a", None, "b", "a"), words=(7, 7)), BagClick(tags=None), BagClick(tags=("-1",), words=())]
    data = write_bags(rows, tmp_path, ending)
    found, static = (everything(read(data, (table, *TABLES[1:]))).ids for table in (dynamic, TABLES[0]))
    assert isinstance(found, Bags)
    assert isinstance(static, Bags)
    assert found.offsets.tolist() == static.offsets.tolist()
    assert found.of(np.array([0])).ids.tolist() == keys(3, "a", "b", "a", "-1"), "missing ids are left out"
    assert found.of(np.array([1, 2])).ids.tolist() == static.of(np.array([1, 2])).ids.tolist()


def test_keys_are_kept_where_rows_of_text_are_ragged(tmp_path: Path) -> None:
    data = write([Click(1, user="a"), Click(0, user="b")], tmp_path, "csv")
    path = tmp_path / "part-000.csv"
    header, *lines = path.read_text().splitlines()
    path.write_text("\n".join([header, lines[0], "1,2", lines[1]]) + "\n")
    with pytest.raises(DataError, match="line 3"):
        everything(read(data, KEYED))
    ids = single_ids(everything(read(replace(data, max_bad_lines=1), KEYED)))
    assert ids[:, 0].tolist() == keys(0, "a", "b")


def test_key_of_all_ones_is_no_missing_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tables mark an id without a row by -1."""

    def ones(cells: Cells, *_: object) -> U64:
        return np.full(len(cells.lengths), 2**64 - 1, np.uint64)

    monkeypatch.setattr(decode, "hashes", ones)
    ids = single_ids(everything(read(write([Click(1)] * 3, tmp_path, "csv"), KEYED)))
    assert ids.tolist() == [[-1, -1]] * 3
