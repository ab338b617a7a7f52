"""Labels and targets of files: the same in every format, and told by file, row and column where they are wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cpr_contract.spec import ColumnsSpec, DataSpec
from cpr_trainer.data.open import open_dataset
from cpr_trainer.errors import DataError
from support.table_data import FILES, TABLES, everything, model_of, read, spec, write

VISITS = {
    "click": [1, 0, 1, 1],
    "buy": [0, 0, 1, 0],
    "dwell": [2.5, 0.0, 118.25, -1e6],
    "user": ["a", "b", "c", "d"],
    "item": [1, 2, 3, 4],
}
BOTH = ColumnsSpec(("click", "buy"), (), (), ("user", "item"))
ALL = replace(BOTH, targets=("dwell",))


def written(folder: Path, ending: str, columns: ColumnsSpec, **cells: object) -> DataSpec:
    """The visits as a file of a format, some columns replaced."""
    return write(pa.table(VISITS | cells), folder, ending, columns=columns)


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_labels_come_first_and_targets_behind(tmp_path: Path, ending: str) -> None:
    batch = everything(read(written(tmp_path, ending, ALL)))
    assert batch.labels.dtype == np.float32
    assert batch.labels.tolist() == [[1, 0, 2.5], [0, 0, 0], [1, 1, 118.25], [1, 0, -1e6]]
    swapped = replace(ALL, labels=("buy", "click"))
    assert everything(read(written(tmp_path, ending, swapped))).labels[:, :2].tolist() == [
        [0, 1],
        [0, 0],
        [1, 1],
        [0, 1],
    ]


def test_one_number_a_sample_is_no_vector(tmp_path: Path) -> None:
    data = written(tmp_path, "csv", replace(BOTH, labels=("buy",)))
    assert everything(read(data)).labels.tolist() == [0, 0, 1, 0]
    only_target = replace(data, columns=replace(BOTH, labels=(), targets=("dwell",)))
    assert everything(read(only_target)).labels.tolist() == VISITS["dwell"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("column", "cells", "fault"),
    [
        ("buy", [0, 1, 2, 0], "not 0 or 1"),
        ("buy", [0, 1, None, 0], "column buy is empty, not 0 or 1"),
        ("dwell", [1.0, 2.0, None, 0.5], "column dwell is empty, not a number"),
        ("dwell", [1.0, 2.0, float("inf"), 0.5], "not a number"),
        ("dwell", [1.0, 2.0, 1e300, 0.5], "not a number"),
    ],
)
def test_a_wrong_one_is_named_by_row_and_column(
    tmp_path: Path, ending: str, column: str, cells: list[object], fault: str
) -> None:
    place = "row 3" if ending == "parquet" else "line 4"
    with pytest.raises(DataError) as caught:
        everything(read(written(tmp_path, ending, ALL, **{column: cells})))
    assert caught.value.message.startswith(f"{tmp_path}/part-000.{ending}, {place}: column {column} is ")
    assert fault in caught.value.message


def test_a_bad_row_is_left_out_with_all_its_labels(tmp_path: Path) -> None:
    (tmp_path / "visits").write_text("click,buy,dwell,user,item\n1,1,1.5,a,1\n1,1\n1,7,2.5,a,1\n0,1,3.5,b,2\n")
    data = replace(spec("CSV", f"{tmp_path}/visits"), columns=ALL, max_bad_lines=2)
    dataset = open_dataset(data, model_of(TABLES), FILES)
    assert dataset.layout.rows == 4
    assert everything(dataset).labels.tolist() == [[1, 1, 1.5], [0, 1, 3.5]]
