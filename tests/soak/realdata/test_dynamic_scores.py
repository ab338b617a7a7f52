"""`cprjob run` on a real ratings log with dynamic tables: scores of row numbers, and above hashes under pressure."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from soak.realdata.test_row_numbers import ROWS, held_out_auc, ratings_job
from support.realdata import click_log
from support.runs import CPRJOB, run

pytestmark = [pytest.mark.dist, pytest.mark.realdata, pytest.mark.timeout(900)]

EXAMPLES = Path(__file__).parents[3] / "examples"
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


def test_example_survives_killed_members_and_scores_as_row_numbers_do(tmp_path: Path) -> None:
    """Two trainers. Row numbers score 0.821 in `test_row_numbers`."""
    settings = ("--set", f"data.uri={click_log('anime_420k.tsv.gz')}", "--set", "recovery.replay.mode=Auto")
    kills = ("--kill", "shard/1@0.3:POD", "--kill", "trainer/0@0.5:POD", "--kill", "shard/0@0.7")
    status, report, output = run(tmp_path, EXAMPLES / "ratings.yaml", *settings, *kills)
    assert status == 0, output
    assert (report["lost_row_updates"], report["budget"]["spent"]) == (0, 0)
    tables = {table["name"]: table for table in report["tables"]}
    assert [tables[name]["entries"] for name in ("user", "item")] > [4000, 6000]
    command = (*CPRJOB, "evaluate", "--workdir", str(tmp_path / "work"), "--json")
    score = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    print(f"AUC {score['auc']:.4f}, {tables}")
    assert score["auc"] == pytest.approx(0.821, abs=0.001)


def test_dynamic_tables_of_half_the_rows_score_above_hashes_of_the_same_memory(tmp_path: Path) -> None:
    """One page of 4,096 slots for 5,001 users and one for 7,391 items; the hashes have the memory of entries, too."""
    capacity = dict.fromkeys(ROWS, 4096)
    hashed_rows = {name: slots * SLOT_BYTES // ROW_BYTES for name, slots in capacity.items()}
    hashed = auc_of(tmp_path / "hashed", hashed_rows, ids="XXH64")
    keys = auc_of(tmp_path / "keys", capacity, ids="Dynamic", eviction={"score": "Pushes"})
    print(f"XXH64 {hashed:.4f}, Dynamic {keys:.4f}")
    assert keys >= hashed + 0.003
