"""A job trained in a notebook: its result, networks that a cell defines, and the messages for mistakes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cpr_contract.model import ModelSpec
from cpr_trainer.data.dataset import Batch
from cpr_trainer.errors import ModelError
from cpr_trainer.model.entrypoint import build_network
from cpr_trainer.notebook import Fitted
from cprjob import fit
from support.documents import Document, edited
from support.oracle import exact_auc
from support.plain_batches import single_ids

ROOT = Path(__file__).parents[3]
DATA = {"format": "Synthetic", "samples": 4000, "batchSize": 100, "seed": 3, "holdOut": 0.25}


def spec(**edits: Any) -> Document:
    """The part of a small job's manifest that is trained."""
    found = edited({"spec.data": DATA} | {f"spec.{path.replace('__', '.')}": value for path, value in edits.items()})
    return {name: found["spec"][name] for name in ("model", "data", "trainers") if name in found["spec"]}


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return fit(spec())


def test_each_batch_is_scored_before_it_trains_and_held_out_rows_after_all(fitted: Fitted) -> None:
    held_out = fitted.held_out
    assert held_out is not None
    assert (fitted.samples, fitted.progressive.samples, held_out.samples) == (4000, 3200, 1000)
    assert fitted.progressive.auc is not None
    assert fitted.progressive.auc > 0.6
    assert fitted.samples_per_s > 0
    batch = fitted.batch(range(3000, 4000))
    predicted = fitted.predict(batch)
    assert held_out.auc == pytest.approx(exact_auc(predicted, batch.labels), abs=1e-3)
    expected = nn.functional.binary_cross_entropy(torch.from_numpy(predicted), torch.from_numpy(batch.labels))
    assert held_out.log_loss == pytest.approx(float(expected), rel=1e-4)


def test_data_that_scores_takes_the_rows_of_the_values_that_were_trained(tmp_path: Path) -> None:
    """A new vocabulary would give row 1, and the prediction of another user, to its most frequent value."""
    (tmp_path / "clicks.csv").write_text("click,user\n" + "1,always\n1,always\n0,never\n" * 60)
    (tmp_path / "later.csv").write_text("click,user\n" + "0,never\n0,never\n1,always\n" * 20)
    columns = {"labels": ["click"], "categories": ["user"]}
    data = {"format": "CSV", "uri": f"{tmp_path}/clicks.csv", "columns": columns, "epochs": 5, "batchSize": 10}
    tables = [{"name": "user", "rows": 3, "ids": "Vocabulary", "vocabulary": {"build": {}}}]
    job = spec(data=data, model__tables=tables) | {"evaluation": {"uri": f"{tmp_path}/later.csv"}}
    scores = fit(job).held_out
    assert scores is not None
    assert (scores.samples, scores.auc) == (60, 1.0)


def test_without_rows_held_out_there_is_no_score_of_them() -> None:
    assert fit(spec(data__holdOut=0, data__samples=300)).held_out is None


@pytest.mark.parametrize(
    ("read", "says"),
    [
        (lambda model: model.rows("c", [0]), "no table 'c': use one of a, b"),
        (lambda model: model.rows("b", [5]), "numbered from 0 to 4"),
        (lambda model: model.rows("b", [-1]), "numbered from 0 to 4"),
        (lambda model: model.batch([4000]), "numbered from 0 to 3999"),
    ],
)
def test_missing_table_row_or_batch_is_refused(fitted: Fitted, read: Callable[[Fitted], Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(fitted)


def test_a_network_defined_in_a_cell_is_trained() -> None:
    seen: list[ModelSpec] = []

    class Cell(nn.Module):
        """A linear model with dropout, so that training and evaluation differ."""

        def __init__(self, spec: ModelSpec, seed: int) -> None:
            super().__init__()
            seen.append(spec)
            self.drop = nn.Dropout(0.1)
            self.last = nn.Linear(13 + len(spec.tables) * spec.embedding_dim, 1)

        def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
            logits: Tensor = self.last(self.drop(torch.cat((dense, embeddings.flatten(1)), dim=1)))
            return logits.squeeze(1)

    job = spec(model__denseOptimizer={"kind": "Adagrad", "learningRate": 0.05})
    for name in ("bottomMlp", "topMlp"):
        del job["model"][name]
    found = fit(job, network=Cell)
    assert isinstance(found.network, Cell)
    assert seen[0].bottom_mlp == ()
    assert found.held_out is not None
    assert found.held_out.auc is not None
    assert found.held_out.auc > 0.6
    batch = found.batch(range(50))
    assert np.array_equal(found.predict(batch), found.predict(batch)), "nothing is dropped when it is done"
    untrained = build_network(seen[0], 3, factory=Cell)
    assert isinstance(untrained, Cell)
    assert not torch.equal(found.network.last.weight, untrained.last.weight)


class Wide(nn.Module):
    def __init__(self, spec: ModelSpec, seed: int) -> None:
        super().__init__()
        self.last = nn.Linear(spec.embedding_dim, 2)

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        logits: Tensor = self.last(embeddings.sum(dim=1))
        return logits


def test_a_network_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"forward of the network Wide returns torch.float32 \[2, 2\]"):
        fit(spec(), network=Wide)
    with pytest.raises(ModelError, match=r"network is of type Linear, not what makes one. Give the network's class"):
        fit(spec(), network=nn.Linear(4, 1))


def test_progress_bar_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    fit(spec(data__samples=300))
    assert capsys.readouterr().err == ""
    fit(spec(data__samples=300), progress=True)
    lines = capsys.readouterr().err.split("\r")[1:]
    shown = [
        (line.count("#"), line.count("."), re.findall(r"(\d+) of 300 samples, \d+ a second", line)) for line in lines
    ]
    assert shown == [(13, 27, ["100"]), (26, 14, ["200"]), (40, 0, ["300"])]
    assert lines[-1].endswith("\n")


def test_batches_may_be_made_by_hand(fitted: Fitted) -> None:
    batch = fitted.batch([5])
    again = Batch(batch.dense, batch.ids, np.zeros(1, np.float32))
    assert np.array_equal(fitted.predict(again), fitted.predict(batch))


def documented() -> list[str]:
    """The Python in the documentation of models."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "models.md").read_text(), re.DOTALL)


def test_documented_methods_return_losses_and_metrics() -> None:
    methods: dict[str, Any] = {"torch": torch, "F": nn.functional}
    for cell in documented():
        if cell.startswith("def "):
            exec(cell, methods)  # noqa: S102 -- as a module does
    logits, labels = torch.zeros(4, 3), torch.ones(4, 3)
    assert methods["sample_losses"](None, logits, labels).shape == (4,)
    sums = methods["metric_sums"](None, logits[:, :2], labels[:, :2])
    assert methods["metrics"](None, sums) == {"click.calibration": 0.5, "buy.calibration": 0.5}


def test_the_cell_in_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (cell,) = (each for each in documented() if "from cprjob import fit" in each)
    found: dict[str, Any] = {"__name__": "__main__"}
    exec(cell, found)  # noqa: S102 -- as a notebook does
    assert found["clicks"].shape == (10,)
    assert found["users"].shape == (3, 8)
    held_out = float(capsys.readouterr().out.split()[0])
    assert held_out == found["fitted"].held_out.auc > 0.7


def test_tables_of_several_dims_are_trained_scored_and_read() -> None:
    found = fit(
        spec(model__tables=[{"name": "a", "rows": 10, "dim": 2}, {"name": "b", "rows": 5}, {"name": "c", "rows": 9}])
    )
    assert found.held_out is not None
    assert found.held_out.auc is not None
    assert found.held_out.auc > 0.6
    assert [found.rows(name, [0, 4]).shape for name in "abc"] == [(2, 2), (2, 4), (2, 4)]
    batch = found.batch([7, 1, 7])
    ids = single_ids(batch)
    embeddings = tuple(torch.from_numpy(found.rows(name, ids[:, place])) for place, name in enumerate("abc"))
    with torch.no_grad():
        logits = found.network(torch.from_numpy(batch.dense), embeddings)
    assert np.allclose(found.predict(batch), torch.sigmoid(logits).numpy(), atol=1e-6)
