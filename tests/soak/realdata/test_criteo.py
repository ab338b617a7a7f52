from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from cpr_contract.model import TableSpec
from cpr_contract.spec import DataSpec
from cpr_trainer.data.dataset import Dataset
from support.plain_batches import single_ids
from support.realdata import click_log
from support.table_data import everything, read

pytestmark = pytest.mark.realdata

TABLES = tuple(TableSpec(f"c{number}", 2000) for number in range(26))


@pytest.fixture(scope="module")
def path() -> Path:
    return click_log("criteo_80k.tsv.gz")


@pytest.fixture(scope="module")
def clicks(path: Path) -> Dataset:
    return read(DataSpec("Criteo", path.as_uri(), 1, None, 128, 1, 0), TABLES)


def test_real_lines_read_as_a_plain_loop_reads_them(path: Path, clicks: Dataset) -> None:
    with gzip.open(path, "rt") as stream:
        lines = [line.rstrip("\n").split("\t") for line in stream]
    assert clicks.layout.rows == len(lines) == 80_000
    batch = everything(clicks)
    assert batch.labels.tolist() == [float(line[0]) for line in lines]
    counts = np.array([[max(int(cell or 0), 0) for cell in line[1:14]] for line in lines], np.float64)
    assert np.array_equal(batch.dense, np.log1p(counts).astype(np.float32))
    for place in (0, 5, 25):
        row_of: dict[str, int] = {}
        for line, row in zip(lines, single_ids(batch)[:, place].tolist(), strict=True):
            assert row_of.setdefault(line[14 + place], row) == row, "one value, one row"
        assert len(set(row_of.values())) > 0.55 * min(len(row_of), 2000), "values spread over the rows"
