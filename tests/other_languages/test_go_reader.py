"""A reader in Go, written after docs/hashing.md and docs/serving.md, finds the vectors that `cprjob_serving` finds."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from cprjob_serving import Model
from support.dynamic_model import ITEM, PAGE, TABLES, USER, TrainedModel, dynamic_job, keys_of, vectors

READER = Path(__file__).parent / "goreader"
#: Ids of each length that XXH64 treats in another way.
IDS = ["42", "-1", "007", "é", "", "18446744073709551615", *("x" * length for length in range(1, 80))]
#: Some have keys above all others. The first values of the last two lie halfway between two numbers of bfloat16.
UNKNOWN = [*(f"unknown {each}" for each in range(1000)), "tie 510", "tie 960"]

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("go") / "goreader"
    subprocess.run(["go", "build", "-o", program, "."], cwd=READER, check=True)
    return program


@pytest.mark.parametrize("table", [USER, ITEM, PAGE], ids=["random", "zero", "random-bf16"])
def test_reader_in_go_finds_the_vectors_of_known_unknown_and_expired_ids(
    reader: Path, tmp_path: Path, table: int
) -> None:
    trained, name = TrainedModel(dynamic_job(tmp_path)), TABLES[table].name
    trained.tables[table].push(1, keys_of(["expired", "renewed"], TABLES[table]))
    trained.tables[table].push(9, keys_of([*IDS, "renewed"], TABLES[table]))
    folder = trained.export(tmp_path / "out", trained.save(9))
    ids = [*IDS, *UNKNOWN, "renewed", "expired"]
    columns = dict.fromkeys(("views", "price", "site", "user", "item", "page"), [1] * len(ids)) | {name: ids}
    served = Model.open(folder).inputs(columns)[name]
    lines = subprocess.run(
        [reader, folder, name], input="\n".join(ids) + "\n", capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = np.array([[int(bits, 16) for bits in line.split()] for line in lines], np.uint32)
    assert found.tobytes() == served.tobytes()
    if table == USER:
        known = found.view(np.float32)[: len(IDS)]
        assert known.tobytes() == vectors(keys_of(IDS, TABLES[USER]), 9, 3).tobytes()
        assert found[-1].tobytes() != vectors(keys_of(["expired"], TABLES[USER]), 1, 3).tobytes()
