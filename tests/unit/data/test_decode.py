"""Labels, targets and features of files: equal in every format, and errors with file, row and column."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cpr_contract.spec import ColumnsSpec, DataSpec
from cpr_trainer.data.dataset import Batch
from cpr_trainer.data.open import open_dataset
from cpr_trainer.embedding.bags import Bags
from cpr_trainer.errors import DataError
from support.feature_data import model_of_features, visits, write_visits
from support.table_data import FILES, TABLES, everything, model_of, read, spec, write

# --- Labels and targets


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


def test_single_label_is_one_dimensional(tmp_path: Path) -> None:
    data = written(tmp_path, "csv", replace(BOTH, labels=("buy",)))
    assert everything(read(data)).labels.tolist() == [0, 0, 1, 0]
    only_target = replace(data, columns=replace(BOTH, labels=(), targets=("dwell",)))
    assert everything(read(only_target)).labels.tolist() == VISITS["dwell"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("column", "cells", "error"),
    [
        ("buy", [0, 1, 2, 0], "not 0 or 1"),
        ("buy", [0, 1, None, 0], "column buy is empty, not 0 or 1"),
        ("dwell", [1.0, 2.0, None, 0.5], "column dwell is empty, not a number"),
        ("dwell", [1.0, 2.0, float("inf"), 0.5], "not a number"),
        ("dwell", [1.0, 2.0, 1e300, 0.5], "not a number"),
    ],
)
def test_wrong_label_is_named_by_row_and_column(
    tmp_path: Path, ending: str, column: str, cells: list[object], error: str
) -> None:
    place = "row 3" if ending == "parquet" else "line 4"
    with pytest.raises(DataError) as caught:
        everything(read(written(tmp_path, ending, ALL, **{column: cells})))
    assert caught.value.message.startswith(f"{tmp_path}/part-000.{ending}, {place}: column {column} is ")
    assert error in caught.value.message


def test_a_bad_row_is_left_out_with_all_its_labels(tmp_path: Path) -> None:
    (tmp_path / "visits").write_text("click,buy,dwell,user,item\n1,1,1.5,a,1\n1,1\n1,7,2.5,a,1\n0,1,3.5,b,2\n")
    data = replace(spec("CSV", f"{tmp_path}/visits"), columns=ALL, max_bad_lines=2)
    dataset = open_dataset(data, model_of(TABLES), FILES)
    assert dataset.layout.rows == 4
    assert everything(dataset).labels.tolist() == [[1, 1, 1.5], [0, 1, 3.5]]


# --- Features: shared tables, sequences and weights


MODEL = model_of_features()
ROW: dict[str, object] = {
    "click": 1,
    "price": 0.5,
    "user": "u",
    "page": "a",
    "seen": ["a", "b", "c", "d", "e", "f"],
    "seconds": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "liked": ["b", "a"],
    "stars": [5.0, 0.5],
    "tags": [],
}


def batch_of(folder: Path, ending: str, rows: list[dict[str, object]], max_bad_lines: int = 0) -> Batch:
    data = replace(write_visits(rows, folder, ending), max_bad_lines=max_bad_lines)
    return open_dataset(data, MODEL, FILES).take(np.arange(len(rows)))


def bags_in(batch: Batch, sample: int) -> list[tuple[list[int], list[float]]]:
    """Return the ids and the weights of each feature of a sample."""
    assert isinstance(batch.ids, Bags)
    assert batch.ids.weights is not None
    edges = batch.ids.offsets[sample * 5 : sample * 5 + 6].tolist()
    spans = [slice(first, last) for first, last in pairwise(edges)]
    return [(batch.ids.ids[span].tolist(), batch.ids.weights[span].tolist()) for span in spans]


@pytest.mark.parametrize("ending", ["parquet", "tsv"])
def test_features_of_a_table_agree_on_its_rows(tmp_path: Path, ending: str) -> None:
    _, page, history, liked, tags = bags_in(batch_of(tmp_path, ending, [ROW]), 0)
    assert len(history[0]) == 5, "the last ones of six"
    assert history[1] == [2, 3, 4, 5, 6]
    assert liked[1] == [5, 0.5]
    assert liked[0] == [history[0][0], page[0][0]], "b is the first of the five, and a the page"
    assert tags == ([], [])


def test_parquet_and_text_give_the_same_samples(tmp_path: Path) -> None:
    rows = visits(60)
    one, other = (batch_of(tmp_path / ending, ending, rows) for ending in ("parquet", "tsv"))
    assert isinstance(one.ids, Bags)
    assert isinstance(other.ids, Bags)
    assert np.array_equal(one.ids.ids, other.ids.ids)
    assert np.array_equal(one.ids.offsets, other.ids.offsets)
    assert np.array_equal(one.ids.weights, other.ids.weights)  # type: ignore[arg-type]
    assert one.dense.shape == (60, 1), "as many numbers as the model states, and no zeros"
    assert np.array_equal(one.dense, other.dense)


@pytest.mark.parametrize("ending", ["parquet", "tsv"])
def test_an_absent_id_takes_its_weight_along(tmp_path: Path, ending: str) -> None:
    absent = ROW | {"seen": ["a", None, "c"], "seconds": [1.0, 2.0, 3.0]}
    _, _, history, *_ = bags_in(batch_of(tmp_path, ending, [absent, ROW]), 0)
    assert (len(history[0]), history[1]) == (2, [1, 3])


@pytest.mark.parametrize("ending", ["parquet", "tsv"])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stars": [1.0]}, "column stars has 1 weights for 2 ids in column liked"),
        ({"stars": [1.0, None]}, "a weight in column stars is empty, not a number"),
    ],
)
def test_a_row_with_wrong_weights_is_a_bad_one(
    tmp_path: Path, ending: str, wrong: dict[str, object], message: str
) -> None:
    rows = [ROW, ROW | wrong, ROW | {"user": "v"}]
    with pytest.raises(DataError, match=message):
        batch_of(tmp_path, ending, rows)
    batch = batch_of(tmp_path, ending, rows, max_bad_lines=1)
    assert len(batch) == 2
    assert bags_in(batch, 0)[1:] == bags_in(batch, 1)[1:], "the next row is whole"


def test_a_column_of_weights_holds_lists_of_numbers(tmp_path: Path) -> None:
    model = replace(MODEL, features=(replace(MODEL.features[3], weights="tags"),))
    data = write_visits([ROW | {"tags": ["x"]}], tmp_path, "parquet")
    with pytest.raises(DataError, match=r"column tags is list<.*>, not a list of numbers"):
        open_dataset(data, model, FILES)


def test_model_numeric_is_the_number_of_numeric_columns(tmp_path: Path) -> None:
    data = write_visits([ROW], tmp_path, "parquet")
    with pytest.raises(DataError, match=r"takes 2 counts and numbers, data\.columns names 1"):
        open_dataset(data, replace(MODEL, numeric=2), FILES)
    assert open_dataset(data, replace(MODEL, numeric=None), FILES).take(np.arange(1)).dense.shape == (1, 13)


def test_criteo_data_refuses_features(tmp_path: Path) -> None:
    data = replace(write_visits([ROW], tmp_path, "tsv"), format="Criteo")
    with pytest.raises(DataError, match="columns of its own"):
        open_dataset(data, MODEL, FILES)


def test_four_thousand_numbers_are_read(tmp_path: Path) -> None:
    names = tuple(f"n{number}" for number in range(4096))
    rows: list[dict[str, object]] = [
        {"click": row, "user": "u"} | {name: row + place for place, name in enumerate(names)} for row in (0, 1)
    ]
    data = write_visits(rows, tmp_path, "parquet")
    model = replace(model_of(MODEL.tables[:1]), numeric=4096)
    columns = ColumnsSpec(("click",), (), names, ("user",))
    batch = open_dataset(replace(data, columns=columns), model, FILES).take(np.arange(2))
    assert np.array_equal(batch.dense, np.arange(4096) + np.array([[0], [1]]))
