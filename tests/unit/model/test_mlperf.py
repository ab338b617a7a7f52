"""MLPerf's DLRM-DCNv2 scaled down: the loss of each step is that of plain torch with the same batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from cpr_trainer.data.open import files_of, open_dataset
from cpr_trainer.embedding.bags import Bags
from cpr_trainer.embedding.segments import initial_rows
from cpr_trainer.single_process import SingleProcessTrainer
from cpr_trainer.trainer.scores import ScoredSlice
from cprjob.reading import read_job
from support.plain_dcn import PlainDcn

MANIFEST = Path(__file__).parents[3] / "examples" / "mlperf-dcnv2.yaml"
STEPS, BATCH, DIM, MOST_ROWS = 60, 64, 8, 200


def scaled_down(folder: Path) -> dict[str, Any]:
    """The `spec` of the example with small tables and layers, and a log of its columns with bags of up to five ids."""
    spec: dict[str, Any] = yaml.safe_load(MANIFEST.read_text("utf-8"))["spec"]
    model, columns, random = spec["model"], spec["data"]["columns"], np.random.default_rng(1)
    model |= {"embeddingDim": DIM, "bottomMlp": [16, DIM], "topMlp": [32, 16, 1]}
    model["interaction"] |= {"rank": 16}
    rows, weights = STEPS * BATCH, random.normal(size=len(columns["numbers"]))
    numbers = {name: random.normal(size=rows).astype(np.float32) for name in columns["numbers"]}
    chance = 1 / (1 + np.exp(-sum(weight * each for weight, each in zip(weights, numbers.values(), strict=True))))
    log = {"label": (random.random(rows) < chance).astype(np.int32)} | numbers
    for table in model["tables"]:
        table["rows"] = min(table["rows"], MOST_ROWS)
        log[table["name"]] = [random.integers(0, table["rows"], each).tolist() for each in random.integers(0, 6, rows)]
    pq.write_table(pa.table(log), folder / "day_0.parquet", row_group_size=500)
    spec["data"] |= {"uri": f"{folder}/day_*.parquet", "batchSize": BATCH}
    for name in ("evaluation", "trainers", "shards", "snapshots"):
        del spec[name]
    return spec


def test_loss_curve_is_that_of_plain_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = read_job(scaled_down(tmp_path), own_network=False)
    model, seed = job.model, job.data.seed
    dataset = open_dataset(job.data, model, files_of(job))
    trainer = SingleProcessTrainer(job, dataset, seed)
    found, add = list[float](), trainer.scores.add

    def noted(part: ScoredSlice) -> None:
        found.append(part.loss_share)
        add(part)

    monkeypatch.setattr(trainer.scores, "add", noted)
    plain = PlainDcn(model).take(trainer.replica.model)
    first = (initial_rows(model, seed, place, np.arange(table.rows)) for place, table in enumerate(model.tables))
    tables = [nn.EmbeddingBag.from_pretrained(torch.from_numpy(each), freeze=False, mode="sum") for each in first]
    dense, sparse = model.dense_optimizer, model.sparse_optimizer
    weights = [table.weight for table in tables]
    optimizers = [
        torch.optim.Adagrad(plain.parameters(), dense.learning_rate, eps=dense.epsilon),
        torch.optim.Adagrad(weights, sparse.learning_rate, eps=sparse.epsilon),
    ]
    expected = list[float]()
    for step in range(1, STEPS + 1):
        batch = dataset.take(trainer.order.batch_indices(step))
        assert isinstance(batch.ids, Bags)
        bags, vectors = np.split(batch.ids.ids, batch.ids.offsets[1:-1]), []
        for place, table in enumerate(tables):
            mine = bags[place :: len(tables)]
            offsets = np.cumsum([0, *map(len, mine)])[:-1]
            vectors.append(table(torch.from_numpy(np.concatenate(mine)).long(), torch.from_numpy(offsets)))
        logits = plain(torch.from_numpy(batch.dense), torch.stack(vectors, dim=1))
        loss = binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.labels))
        for each in optimizers:
            each.zero_grad()
        loss.backward()
        for each in optimizers:
            each.step()
        expected.append(loss.item())
    trainer.train(lambda _: None)
    assert len(found) == STEPS
    assert np.mean(expected[-10:]) < 0.9 * np.mean(expected[:10]), "it learns"
    np.testing.assert_allclose(found, expected, rtol=1e-4)
