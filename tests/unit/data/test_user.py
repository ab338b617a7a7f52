"""Data from code of the user: the samples of a file of the same rows, and errors with the entrypoint."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from cpr_contract.spec import DataSpec
from cpr_trainer.data.files import Index
from cpr_trainer.data.inspection import inspect_job
from cpr_trainer.data.open import Find, open_dataset
from cpr_trainer.data.user import BLOCK_ROWS, UserFormat
from cpr_trainer.embedding.bags import Bags
from cpr_trainer.errors import DataError
from cpr_trainer.trainer.frozen_inputs import FrozenInputs
from support.bag_data import COLUMNS, TABLES, as_table, bag_clicks, write_bags
from support.memory_store import MemoryStore
from support.table_data import FILES, everything, model_of, read

ROWS = as_table(bag_clicks(300))
#: Makes the entrypoint give a dataset; returns the uris that it is called with.
Installed = Callable[[Any], list[str | None]]
CUSTOM = DataSpec("Custom", None, 1, None, 8, 1, 0, columns=COLUMNS, entrypoint="mine:Rows")


class Rows:
    """A dataset that gives slices of a table as `given` makes them."""

    def __init__(self, table: pa.Table = ROWS, given: Callable[[pa.Table], Any] = lambda part: part) -> None:
        self.table, self.given = table, given
        self.requested: list[slice] = []

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, rows: slice) -> Any:
        self.requested.append(rows)
        return self.given(self.table.slice(rows.start, rows.stop - rows.start))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Installed:
    def install(dataset: Any) -> list[str | None]:
        uris: list[str | None] = []

        def make(uri: str | None) -> Any:
            uris.append(uri)
            return dataset

        monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(Rows=make))
        return uris

    return install


@pytest.mark.parametrize("given", [lambda part: part, lambda part: part.to_pydict()], ids=["table", "mapping"])
def test_user_dataset_gives_the_samples_of_an_equal_file(
    tmp_path: Path, installed: Installed, given: Callable[[pa.Table], Any]
) -> None:
    uris = installed(Rows(given=given))
    found, file = (
        everything(read(data, TABLES)) for data in (CUSTOM, write_bags(bag_clicks(300), tmp_path, "parquet"))
    )
    assert uris == [None]
    assert np.array_equal(found.dense, file.dense)
    assert np.array_equal(found.labels, file.labels)
    assert isinstance(found.ids, Bags)
    assert isinstance(file.ids, Bags)
    assert np.array_equal(found.ids.ids, file.ids.ids)
    assert np.array_equal(found.ids.offsets, file.ids.offsets)


def as_arrays(part: pa.Table) -> dict[str, Any]:
    """Return bags as arrays; NumPy makes an empty one of floats."""
    bags = {name: [np.array(each) for each in part[name].to_pylist()] for name in ("tags", "words")}
    return {**part.drop_columns(["tags", "words"]).to_pydict(), **bags}


def as_tensors(part: pa.Table) -> dict[str, Any]:
    """Return bags and labels as lists of tensors, and prices as one."""
    cells: dict[str, Any] = part.to_pydict()
    for name in ("words", "click"):
        cells[name] = [torch.tensor(each) for each in cells[name]]
    cells["price"] = torch.tensor(cells["price"], dtype=torch.float64)
    return cells


@pytest.mark.parametrize("given", [as_arrays, as_tensors])
def test_arrays_and_tensors_are_bags_and_numbers(
    tmp_path: Path, installed: Installed, given: Callable[[pa.Table], Any]
) -> None:
    installed(Rows(given=given))
    found, file = (
        everything(read(data, TABLES)) for data in (CUSTOM, write_bags(bag_clicks(300), tmp_path, "parquet"))
    )
    assert np.allclose(found.dense, file.dense)
    assert np.array_equal(found.labels, file.labels)
    assert isinstance(found.ids, Bags)
    assert isinstance(file.ids, Bags)
    assert np.array_equal(found.ids.ids, file.ids.ids)
    assert np.array_equal(found.ids.offsets, file.ids.offsets)


def test_block_of_nulls_is_one_without_values(installed: Installed) -> None:
    many = pa.concat_tables([ROWS] * 60)
    absent = {"page": [None], "tags": [None], "words": [[]]}

    def given(part: pa.Table) -> Any:
        late = part.num_rows < BLOCK_ROWS
        return part.to_pydict() | {name: cell * part.num_rows for name, cell in absent.items() if late}

    installed(Rows(many, given))
    batch = read(CUSTOM, TABLES).take(np.array([0, many.num_rows - 1]))
    assert isinstance(batch.ids, Bags)
    assert np.diff(batch.ids.offsets)[3:].tolist() == [0, 1, 0], "tags, the page and words of the last sample"


def test_entrypoint_gets_the_uri_and_its_dataset_requests_of_blocks(installed: Installed) -> None:
    many = pa.concat_tables([ROWS] * 60)
    dataset = Rows(many)
    uris = installed(dataset)
    opened = read(replace(CUSTOM, uri="s3://mine/here", shuffle_rows=1024), TABLES)
    assert uris == ["s3://mine/here"]
    assert opened.layout.rows == many.num_rows == 18_000
    opened.take(np.array([many.num_rows - 1, 0]))
    assert slice(2 * BLOCK_ROWS, 18_000) in dataset.requested
    assert all(each.stop - each.start <= BLOCK_ROWS for each in dataset.requested)


def test_user_dataset_can_be_inspected(installed: Installed) -> None:
    installed(Rows())
    job = SimpleNamespace(data=CUSTOM, model=model_of(TABLES), evaluation=None)
    stats = inspect_job(job, FILES).data  # type: ignore[arg-type]  # the part of a job that it reads
    assert (stats.rows, stats.bad) == (300, 0)
    assert {each.name for each in stats.columns} == set(ROWS.column_names)


def failing(error: Exception) -> Callable[[pa.Table], Any]:
    def fail(_: pa.Table) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            failing(KeyError("shard 3")),
            r"mine:Rows failed at \[0:300\]: KeyError: 'shard 3' \(.*test_user.py, line \d+\)",
        ),
        (lambda part: part.slice(1), "299 rows came instead of 300"),
        (lambda _: 5, "TypeError"),
        (lambda _: {"click": [1, 0], "price": [1.0]}, "ArrowInvalid"),
        (lambda part: part.drop_columns(["price"]), "no columns 'price'"),
        (lambda part: part.set_column(1, "price", pa.array(["x"] * part.num_rows)), "price is string, not a number"),
    ],
)
def test_unusable_rows_of_a_user_dataset_are_data_errors(
    installed: Installed, given: Callable[[pa.Table], Any], message: str
) -> None:
    installed(Rows(given=given))
    with pytest.raises(DataError, match=message):
        read(CUSTOM, TABLES)


def test_length_that_fails_later_is_bad_data(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(Rows())
    reader = UserFormat("mine:Rows", None, None)
    monkeypatch.setattr(Rows, "__len__", failing(RuntimeError("no cursor")))
    with pytest.raises(DataError, match=r"len\(\) of mine:Rows failed: RuntimeError: no cursor \(.*line \d+\)"):
        reader.index("mine:Rows")


def test_network_error_of_a_user_dataset_is_an_outage(installed: Installed) -> None:
    installed(Rows(given=failing(OSError(errno.ECONNRESET, "reset"))))
    with pytest.raises(OSError, match="reset"):
        read(CUSTOM, TABLES)


@pytest.mark.parametrize(
    ("entrypoint", "message"),
    [
        ("no.such:Rows", "cannot be imported"),
        ("mine:Nothing", "cannot be imported"),
        ("mine:Rows", "failed: TypeError"),
    ],
)
def test_an_entrypoint_that_makes_no_dataset_is_named(installed: Installed, entrypoint: str, message: str) -> None:
    installed(object())
    with pytest.raises(DataError, match=f"The entrypoint {entrypoint} {message}"):
        read(replace(CUSTOM, entrypoint=entrypoint), TABLES)


def test_a_dataset_of_another_length_than_the_job_began_with_is_refused(installed: Installed) -> None:
    store = MemoryStore()

    def opened() -> Any:
        inputs = FrozenInputs("uid", None, lambda: True, lambda: None)

        def frozen(find: Find) -> Any:
            found: list[Index] = list(inputs.freeze_data(store, list, find))
            return found

        dataset = open_dataset(CUSTOM, model_of(TABLES), FILES, frozen)
        inputs.count_new_files()
        assert inputs.new_files == 0
        return dataset

    installed(Rows())
    assert len(everything(opened())) == 300
    installed(Rows(pa.concat_tables([ROWS, ROWS])))
    with pytest.raises(DataError, match="has 600 rows, and the job began with 300"):
        everything(opened())
