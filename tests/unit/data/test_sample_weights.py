"""The column of sample weights: its values in each format, and bad ones by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cpr_contract.spec import DataSpec
from cpr_trainer.errors import DataError
from support.table_data import COLUMNS, as_table, clicks, everything, read, write

WEIGHTED = replace(COLUMNS, weight="worth")
ROWS = as_table(clicks(40))


def written(folder: Path, ending: str, worth: pa.Array) -> DataSpec:
    return write(ROWS.append_column("worth", worth), folder / "log", ending, files=2, columns=WEIGHTED)


@pytest.mark.parametrize("ending", ["csv", "tsv.zst", "parquet"])
def test_weights_stay_with_their_rows(tmp_path: Path, ending: str) -> None:
    worth = np.arange(40) / 4
    dataset = read(written(tmp_path, ending, pa.array(worth)))
    assert everything(dataset).sample_weights.tolist() == worth.tolist()  # type: ignore[union-attr]
    some = np.array([31, 2, 2, 0, 39])
    found = dataset.take(some).sample_weights
    assert found is not None
    assert (found.dtype, found.tolist()) == (np.float32, worth[some].tolist())
    assert everything(read(write(ROWS, tmp_path / "plain", ending))).sample_weights is None


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("value", "shown"), [(None, "empty"), (-0.5, "-0.5"), (np.nan, "nan"), (np.inf, "inf"), (1000000.5, "1000000.5")]
)
def test_row_with_another_weight_is_bad(tmp_path: Path, ending: str, value: float | None, shown: str) -> None:
    worth = pa.array([1.0] * 30 + [value] + [1.0] * 9, pa.float64())
    data = written(tmp_path, ending, worth)
    with pytest.raises(DataError) as caught:
        everything(read(data))
    assert (caught.value.reason, "worth is" in caught.value.message) == ("BadData", True)
    quoted = {shown, f"'{shown}'"}
    assert any(f"column worth is {each}, not a weight from 0 to 1000000" in caught.value.message for each in quoted)
    left = everything(read(replace(data, max_bad_lines=1)))
    assert (len(left), left.sample_weights.sum()) == (39, 39)  # type: ignore[union-attr]


def test_column_of_texts_is_no_weight(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column worth is string, not a number"):
        read(written(tmp_path, "parquet", pa.array(["much"] * 40)))
