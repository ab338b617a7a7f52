"""Columns with bags of ids, in every format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cpr_contract.model import ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_contract.spec import DataSpec, JobSpec, SnapshotSpec, StoreSpec
from cpr_trainer.data.dataset import Batch, Dataset
from cpr_trainer.data.inspection import inspect_job
from cpr_trainer.embedding.bags import Bags
from cpr_trainer.errors import DataError
from support.bag_data import COLUMNS, TABLES, BagClick, as_table, bag_clicks, write_bags
from support.plain_batches import single_ids
from support.table_data import FILES, everything, read, spec

ENDINGS = ("parquet", "csv", "tsv")


def bags_in(batch: Batch) -> list[list[int]]:
    """All bags, sample by sample and table by table."""
    assert isinstance(batch.ids, Bags)
    return [part.tolist() for part in np.split(batch.ids.ids, batch.ids.offsets[1:-1])]


def opened(rows: list[BagClick], folder: Path, ending: str = "parquet", files: int = 1) -> Dataset:
    return read(write_bags(rows, folder, ending, files), TABLES)


def test_all_formats_give_the_same_bags_in_any_order(tmp_path: Path) -> None:
    rows = bag_clicks(300)
    sets = [opened(rows, tmp_path / ending, ending, files) for files, ending in enumerate(ENDINGS, start=1)]
    order = np.random.default_rng(1).integers(0, 300, 500)
    first = sets[0].take(order)
    assert len(bags_in(first)) == 3 * 500
    for dataset in sets[1:]:
        other = dataset.take(order)
        assert bags_in(other) == bags_in(first)
        assert np.array_equal(other.labels, first.labels)
        assert np.array_equal(other.dense, first.dense)
    one_by_one = [bag for index in order.tolist() for bag in bags_in(sets[1].take(np.array([index])))]
    assert one_by_one == bags_in(first)


@pytest.mark.parametrize("ending", ENDINGS)
def test_bags_leave_absent_ids_out_and_hash_texts_as_single_columns(tmp_path: Path, ending: str) -> None:
    rows = [
        BagClick(tags=("a", None, "b", "a"), page=None, words=(7,)),
        BagClick(tags=None, words=()),
        BagClick(tags=(None,), words=(None, 8, None)),
    ]
    found = bags_in(everything(opened(rows, tmp_path / "bags", ending)))
    assert [len(bag) for bag in found] == [3, 1, 1, 0, 1, 0, 0, 1, 1]
    assert found[0][0] == found[0][2] != found[0][1]
    single = (TableSpec("a", 300), TableSpec("b", 300), TableSpec("c", 40), TableSpec("d", 200))
    (tmp_path / "single.csv").write_text("click,a,b,c,d\n1,a,b,,7\n")
    columns = replace(COLUMNS, numbers=(), categories=("a", "b", "c", "d"))
    ids = single_ids(everything(read(replace(spec("CSV", f"{tmp_path}/single.csv"), columns=columns), single)))
    assert [found[0][0], found[0][1], found[1][0], found[2][0]] == ids[0].tolist()


def test_lists_of_other_widths_and_fixed_sizes_are_bags(tmp_path: Path) -> None:
    rows = [BagClick(tags=("a", "b"), words=(1, 2)), BagClick(tags=("c", "a"), words=(3, 4))]
    expected = bags_in(everything(opened(rows, tmp_path / "usual")))
    kinds = {"tags": pa.large_list(pa.dictionary(pa.int32(), pa.string())), "words": pa.list_(pa.int16(), 2)}
    views = {"tags": pa.list_(pa.string_view()), "words": pa.list_view(pa.int32())}
    for each in (kinds, views):
        assert bags_in(everything(read(stored(as_table(rows), each, tmp_path / "other.parquet"), TABLES))) == expected


@pytest.mark.parametrize("kind", [pa.null(), pa.list_(pa.null())], ids=str)
def test_column_of_nulls_has_empty_bags(tmp_path: Path, kind: pa.DataType) -> None:
    rows = [BagClick(tags=None, words=None)] * 2
    expected = bags_in(everything(opened(rows, tmp_path / "usual")))
    data = stored(as_table(rows), {"tags": kind, "words": kind}, tmp_path / "nulls.parquet")
    assert bags_in(everything(read(data, TABLES))) == expected


def stored(table: pa.Table, kinds: dict[str, pa.DataType], path: Path) -> DataSpec:
    """Store a table with other types as one file."""
    for name, kind in kinds.items():
        column = pa.array(table.column(name).to_pylist(), kind)
        table = table.set_column(table.column_names.index(name), name, column)
    pq.write_table(table, path)
    return replace(spec("Parquet", str(path)), columns=COLUMNS)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ((TableSpec("tags", 300), TABLES[1], TABLES[2]), "tags is list<.*> not text or an integer"),
        ((TABLES[0], TableSpec("page", 40, "Sum"), TABLES[2]), "page is string, not a list"),
    ],
)
def test_lists_and_poolings_have_to_fit(tmp_path: Path, tables: tuple[TableSpec, ...], message: str) -> None:
    data = write_bags(bag_clicks(5), tmp_path / "bags", "parquet")
    with pytest.raises(DataError, match=message.replace("> ", ">, ")):
        read(data, tables)


@pytest.mark.parametrize(
    "data",
    [
        DataSpec("Synthetic", None, None, 10, 1, 0, 0),
        DataSpec("Criteo", "/clicks", 1, None, 1, 0, 0),
        replace(spec("CSV", "/clicks"), columns=COLUMNS),
    ],
)
def test_data_without_bags_feeds_no_table_that_pools(data: DataSpec) -> None:
    with pytest.raises(DataError, match="no bags of ids"):
        read(data, TABLES)


@pytest.mark.parametrize("ending", ENDINGS)
def test_inspection_counts_the_ids_of_bags(tmp_path: Path, ending: str) -> None:
    rows = [BagClick(words=(1, 2, 2)), BagClick(words=None), BagClick(words=(5,)), BagClick(words=(7, None))]
    model = ModelSpec(4, (4,), (1,), TABLES, OptimizerSpec("SGD", 0.1), SparseOptimizerSpec("SGD", 0.1))
    store = SnapshotSpec(StoreSpec("file:///nowhere", None, "b", ""), 2, 30.0, None)
    data = write_bags(rows, tmp_path / "bags", ending)
    stats = inspect_job(JobSpec(1, "u", "n", model, data, 1, 1, store, 5.0), FILES).data
    words = next(column for column in stats.columns if column.name == "words")
    assert words.feeds == "table words, 200 rows, sum of a bag"
    assert (words.bag_mean, words.bag_most, words.missing, words.distinct) == (5 / 4, 3, 1, 4)
    assert (words.lowest, words.highest) == (1, 7)
    page = next(column for column in stats.columns if column.name == "page")
    assert (page.bag_mean, page.bag_most) == (None, None)
