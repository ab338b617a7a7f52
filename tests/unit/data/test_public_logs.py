"""The manifests of public logs train small files of exactly their shape, and the page's commands convert such files."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cpr_trainer.notebook import Fitted
from cprjob import fit
from support.pages import blocks
from support.plain_batches import single_ids
from support.public_logs import ROWS, WRITERS, avazu, movielens_25m, yambda_flat

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "public_logs"
PLACES = {
    "criteo-kaggle": "train.txt",
    "criteo-1tb": "train/",
    "criteo-x1": "train.csv",
    "avazu": "train.gz",
    "movielens-25m": "ratings.csv",
    "movielens-1m": "ratings.dat",
    "taobao": "UserBehavior.csv",
    "yambda-sequential": "listens.parquet",
}
LATER = {"criteo-1tb": "day_23.gz", "criteo-x1": "test.csv"}
BATCH = 64


def spec_of(name: str, uri: Path | str) -> dict[str, Any]:
    """Return a manifest's `spec`, with the options that a user sets: the place of the log, and here a smaller batch."""
    spec: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text("utf-8"))["spec"]
    spec["data"] |= {"uri": str(uri), "batchSize": BATCH}
    return spec


def convert(section: str, folder: Path) -> None:
    """Run the command of a section of the page."""
    (block,) = (each for each in blocks(ROOT / "docs" / "public-logs.md") if each.section == section)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["bash", "-ec", block.text], cwd=folder, env={**os.environ, "PATH": path}, check=True)


def all_labels(fitted: Fitted) -> list[int]:
    return [int(label) for label in fitted.batch(range(fitted.dataset.layout.rows)).labels]


def assert_trained(fitted: Fitted, labels: list[int]) -> None:
    assert all_labels(fitted) == labels
    assert fitted.samples >= 0.9 * len(labels) > 5 * BATCH
    assert np.isfinite(fitted.loss)


@pytest.mark.parametrize("name", PLACES)
def test_log_is_trained_as_it_is_distributed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    labels = WRITERS[name](tmp_path)
    spec = spec_of(name, f"{tmp_path}/{PLACES[name]}")
    if name in LATER:
        spec["evaluation"]["uri"] = f"{tmp_path}/{LATER[name]}"
    fitted = fit(spec)
    assert_trained(fitted, labels)
    if name in LATER or "holdOut" in spec["data"]:
        assert fitted.held_out is not None
        assert fitted.held_out.auc is not None


def test_criteo_counts_enter_by_their_logarithm(tmp_path: Path) -> None:
    WRITERS["criteo-kaggle"](tmp_path)
    cells = [line.split("\t") for line in (tmp_path / "train.txt").read_text("ascii").splitlines()]
    expected = [[np.log1p(max(int(cell or 0), 0)) for cell in row[1:14]] for row in cells]
    batch = fit(spec_of("criteo-kaggle", tmp_path / "train.txt")).batch(range(ROWS))
    np.testing.assert_allclose(batch.dense, expected, rtol=1e-6)
    words, ids = [row[14 + 2] for row in cells], single_ids(batch)[:, 2]
    assert "" in words
    assert len({*zip(words, ids, strict=True)}) == len({*words}) == len({*ids})


def test_columns_between_two_colons_are_users_and_movies(tmp_path: Path) -> None:
    WRITERS["movielens-1m"](tmp_path)
    cells = [line.split("::") for line in (tmp_path / "ratings.dat").read_text("ascii").splitlines()]
    batch = fit(spec_of("movielens-1m", tmp_path / "ratings.dat")).batch(range(ROWS))
    assert single_ids(batch).tolist() == [[int(user), int(movie)] for user, movie, *_ in cells]


def test_command_adds_the_hour_of_the_day(tmp_path: Path) -> None:
    labels = avazu(tmp_path)
    convert("Avazu", tmp_path)
    first, *rows = gzip.decompress((tmp_path / "avazu.csv.gz").read_bytes()).decode().splitlines()
    assert first.endswith(",C21,hour_of_day")
    assert {row.rpartition(",")[2] for row in rows} == {f"{hour:02}" for hour in range(24)}
    spec = spec_of("avazu", tmp_path / "avazu.csv.gz")
    spec["data"]["columns"]["categories"].append("hour_of_day")
    spec["model"]["tables"].append({"name": "hour_of_day", "rows": 240})
    assert_trained(fit(spec), labels)


def test_command_sorts_ratings_by_time(tmp_path: Path) -> None:
    movielens_25m(tmp_path)
    convert("MovieLens", tmp_path)
    before, after = ((tmp_path / name).read_text("ascii").splitlines() for name in ("ratings.csv", "by-time.csv"))
    assert after == [before[0], *sorted(before[1:], key=lambda row: int(row.rpartition(",")[2]))]
    assert after != before
    spec = spec_of("movielens-25m", tmp_path / "by-time.csv")
    spec["data"]["holdOut"] = 0.1
    found = fit(spec).held_out
    assert found is not None
    assert found.samples == ROWS // 10


def test_command_adds_the_label_to_listens(tmp_path: Path) -> None:
    labels = yambda_flat(tmp_path)
    convert("Yambda", tmp_path)
    assert_trained(fit(spec_of("yambda-flat", tmp_path / "played.parquet")), labels)


def test_page_lists_every_manifest() -> None:
    page = (ROOT / "docs" / "public-logs.md").read_text("utf-8")
    assert {*WRITERS} == {path.stem for path in EXAMPLES.glob("*.yaml")} == {*PLACES, "yambda-flat"}
    assert [name for name in WRITERS if f"`{name}.yaml`" not in page] == []
