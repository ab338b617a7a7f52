"""The jobs of the pages for Kubeflow, PERSIA and TorchRec train data in the form that those pages describe."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from cprjob import fit
from support.public_logs import criteo_kaggle

EXAMPLES = Path(__file__).parents[3] / "examples" / "moved"
ROWS = 800
#: Columns of adult.data with few words: their place from 0, and words.
WORDS = {
    1: ("State-gov", "Private", "?"),
    3: ("Bachelors", "HS-grad", "Masters"),
    5: ("Never-married", "Married-civ-spouse"),
    6: ("Adm-clerical", "Exec-managerial", "?"),
    7: ("Not-in-family", "Husband"),
    8: ("White", "Black"),
    9: ("Male", "Female"),
    13: ("United-States", "Cuba", "?"),
}


def spec_of(name: str, uri: Path | str) -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text("utf-8"))["spec"]
    spec["data"] |= {"uri": str(uri), "batchSize": 64}
    return spec


def test_job_of_kubeflow_trains_with_the_container_of_the_page(tmp_path: Path) -> None:
    labels = criteo_kaggle(tmp_path)
    (file,) = tmp_path.iterdir()
    spec = spec_of("kubeflow", file)
    page = (EXAMPLES.parents[1] / "docs" / "migrate.md").read_text("utf-8")
    before, after = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(containers:.+?)```", page, re.DOTALL))
    assert spec["trainers"]["template"]["spec"]["containers"] == after["containers"]
    assert before["containers"][0]["name"] == "pytorch"
    fitted = fit(spec)
    assert fitted.batch(range(len(labels))).labels.tolist() == labels
    assert np.isfinite(fitted.loss)


def test_job_of_persia_trains_the_census(tmp_path: Path) -> None:
    draw, lines, labels = random.Random(3), list[str](), list[int]()
    for _ in range(ROWS):
        cells: list[object] = [draw.randrange(17, 90) for _ in range(14)]
        cells[10] = draw.choice((0, 0, 2174))
        for place, words in WORDS.items():
            cells[place] = draw.choice(words)
        labels.append(int(draw.random() < (0.6 if cells[3] == "Masters" else 0.1)))
        lines.append(", ".join(map(str, [*cells, (">50K" if labels[-1] else "<=50K")])))
    (tmp_path / "adult.data").write_text("\n".join([*lines, "", ""]), "ascii")
    fitted = fit(spec_of("persia", tmp_path / "adult.data"))
    assert fitted.batch(range(ROWS)).labels.tolist() == labels
    assert fitted.samples >= 0.9 * ROWS
    table = fitted.tables.keys([each.name for each in fitted.model.tables].index("education"))
    assert len(table) == len(WORDS[3]), "a row for each word, without the blank before it"


def test_job_of_torchrec_trains_bags_weights_and_managed_ids(tmp_path: Path) -> None:
    draw = random.Random(3)
    bags = [[draw.randrange(20000) for _ in range(draw.randrange(6))] for _ in range(2 * ROWS)]
    liked = bags[ROWS:]
    users = [draw.randrange(2**60) for _ in range(100)]
    columns: dict[str, Any] = {
        "click": [int(draw.random() < 0.3) for _ in range(ROWS)],
        "age": [draw.random() for _ in range(ROWS)],
        "price": [draw.random() for _ in range(ROWS)],
        "user": [users[place % 100] for place in range(ROWS)],
        "seen": bags[:ROWS],
        "liked": liked,
        "stars": pa.array([[draw.random() for _ in bag] for bag in liked], pa.list_(pa.float32())),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    fitted = fit(spec_of("torchrec", f"{tmp_path}/"))
    assert fitted.batch(range(ROWS)).labels.tolist() == columns["click"]
    assert np.isfinite(fitted.loss)
    assert len(fitted.tables.keys(0)) == len(users)
    assert fitted.held_out is not None
    assert fitted.held_out.samples == ROWS // 10
