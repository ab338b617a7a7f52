"""`cprjob run` on a real ratings log with dynamic tables: scores of row numbers, and above hashes under pressure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from soak.realdata.test_row_numbers import ROWS, held_out_auc, ratings_job
from support.realdata import click_log

pytestmark = [pytest.mark.dist, pytest.mark.realdata, pytest.mark.timeout(900)]

#: Bytes of a row with the state of Adagrad, and of a slot with its entry.
ROW_BYTES, SLOT_BYTES = 2 * 8 * 4, 2 * 8 * 4 + 16


def auc_of(folder: Path, rows: dict[str, int], **table: Any) -> float:
    folder.mkdir()
    job = ratings_job(click_log("anime_420k.tsv.gz"), **table)
    for each in job["spec"]["model"]["tables"]:
        each["rows"] = rows[each["name"]]
    job["spec"]["shards"] = {"replicas": 1}  # a shard holds whole pages
    return held_out_auc(folder, job)[0]


def test_dynamic_tables_without_pressure_score_as_row_numbers_do(tmp_path: Path) -> None:
    numbers = auc_of(tmp_path / "numbers", ROWS, ids="RowNumber")
    keys = auc_of(tmp_path / "keys", ROWS, ids="Dynamic")
    print(f"RowNumber {numbers:.4f}, Dynamic {keys:.4f}")
    assert keys == pytest.approx(numbers, abs=0.001)


def test_dynamic_tables_of_half_the_rows_score_above_hashes_of_the_same_memory(tmp_path: Path) -> None:
    """One page of 4,096 slots for 5,001 users and one for 7,391 items; the hashes have the memory of entries, too."""
    capacity = dict.fromkeys(ROWS, 4096)
    hashed_rows = {name: slots * SLOT_BYTES // ROW_BYTES for name, slots in capacity.items()}
    hashed = auc_of(tmp_path / "hashed", hashed_rows, ids="XXH64")
    keys = auc_of(tmp_path / "keys", capacity, ids="Dynamic", eviction={"score": "Pushes"})
    print(f"XXH64 {hashed:.4f}, Dynamic {keys:.4f}")
    assert keys >= hashed + 0.003
