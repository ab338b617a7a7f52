"""Labels that are texts: their values in each format, and bad ones by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cpr_contract.spec import DataSpec, LabelValuesSpec
from cpr_trainer.errors import DataError
from support.table_data import COLUMNS, as_table, clicks, everything, read, write

VALUES = LabelValuesSpec("click", ("yes", "click"), ("no", ""))
ROWS = as_table(clicks(30))


def written(folder: Path, ending: str, answers: pa.Array, values: LabelValuesSpec = VALUES) -> DataSpec:
    rows = ROWS.set_column(ROWS.column_names.index("click"), "click", answers)
    return write(rows, folder / "log", ending, files=2, columns=replace(COLUMNS, label_values=(values,)))


@pytest.mark.parametrize("ending", ["csv", "tsv.zst", "parquet"])
def test_texts_of_a_label_are_0_and_1(tmp_path: Path, ending: str) -> None:
    answers = [["yes", "no", "click", None, ""][row % 5] for row in range(30)]
    labels = everything(read(written(tmp_path, ending, pa.array(answers)))).labels
    assert (labels.dtype, labels.tolist()) == (np.float32, [[1, 0, 1, 0, 0][row % 5] for row in range(30)])


def test_integers_and_dictionaries_are_texts_of_a_label(tmp_path: Path) -> None:
    stars = LabelValuesSpec("click", ("4", "5"), ("1", "2", "3"))
    found = everything(read(written(tmp_path, "parquet", pa.array([1 + row % 5 for row in range(30)]), stars)))
    assert found.labels.tolist() == [float(row % 5 >= 3) for row in range(30)]
    coded = pa.array(["no", "yes", "no"] * 10).dictionary_encode()
    assert everything(read(written(tmp_path, "parquet", coded))).labels.tolist() == [0.0, 1.0, 0.0] * 10


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(("value", "shown"), [("maybe", "'maybe'"), ("Yes", "'Yes'"), ("1", "'1'"), (" yes", "' yes'")])
def test_row_with_another_text_is_bad(tmp_path: Path, ending: str, value: str, shown: str) -> None:
    data = written(tmp_path, ending, pa.array(["yes"] * 12 + [value] + ["no"] * 17))
    with pytest.raises(DataError) as caught:
        everything(read(data))
    assert f"column click is {shown}, not one of 'yes', 'click', 'no', ''" in caught.value.message
    assert everything(read(replace(data, max_bad_lines=1))).labels.sum() == 12


def test_missing_label_is_bad_unless_it_is_one_of_the_values(tmp_path: Path) -> None:
    data = written(tmp_path, "parquet", pa.array(["yes", None, "no"] * 10), replace(VALUES, negative=("no",)))
    with pytest.raises(DataError, match="column click is empty, not one of 'yes', 'click', 'no'"):
        everything(read(data))


def test_label_of_floating_point_numbers_has_no_texts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column click is double, not text or an integer"):
        read(written(tmp_path, "parquet", pa.array([1.5] * 30)))
