"""A job with bags of ids, against torch's own `EmbeddingBag` in one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cpr_contract.spec import JobSpec
from cpr_trainer.bags import Bags
from cpr_trainer.data.files import files_of
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.data.source import open_dataset
from cpr_trainer.model.dlrm import Dlrm
from cpr_trainer.tables.segments import initial_rows
from support.bag_data import TABLES, bag_clicks, write_bags
from support.local_job import LocalJob, small_job
from support.model import saved_model

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]


def train_bags_alone(job: JobSpec) -> tuple[Dlrm, list[torch.nn.EmbeddingBag]]:
    """Train a DLRM over `EmbeddingBag`s; row-wise Adagrad is written out over whole tables."""
    dataset = open_dataset(job.data, job.model, files_of(job))
    order, seed = BatchOrder.of(job.data, dataset.layout), job.data.seed
    network = Dlrm(job.model, seed)
    tables: list[torch.nn.EmbeddingBag] = []
    for place, spec in enumerate(job.model.tables):
        first = torch.from_numpy(initial_rows(job.model, seed, place, np.arange(spec.rows)))
        tables.append(torch.nn.EmbeddingBag.from_pretrained(first, freeze=False, mode=(spec.pooling or "Sum").lower()))
    optimizer = torch.optim.Adagrad(network.parameters(), lr=job.model.dense_optimizer.learning_rate)
    sums = [torch.zeros(spec.rows, 1) for spec in job.model.tables]
    for step in range(1, order.steps + 1):
        batch = dataset.take(order.batch_indices(step))
        assert isinstance(batch.ids, Bags)
        bags = np.split(batch.ids.ids, batch.ids.offsets[1:-1])
        columns = []
        for place, table in enumerate(tables):
            mine = bags[place :: len(tables)]
            offsets = np.cumsum([0, *map(len, mine)])[:-1]
            columns.append(table(torch.from_numpy(np.concatenate(mine)).long(), torch.from_numpy(offsets)))
        logits = network(torch.from_numpy(batch.dense), torch.stack(columns, dim=1))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.labels))
        for module in (network, *tables):
            module.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for table, accumulator in zip(tables, sums, strict=True):
                gradient = table.weight.grad
                assert gradient is not None
                accumulator.add_(gradient.square().mean(dim=1, keepdim=True))
                steps = gradient / (accumulator.sqrt() + 1e-8)
                table.weight -= job.model.sparse_optimizer.learning_rate * steps
    return network, tables


def test_a_job_with_bags_ends_in_what_torchs_own_bags_end_in(tmp_path: Path) -> None:
    job = small_job(tmp_path, samples=1)
    data = write_bags(bag_clicks(2000), tmp_path / "bags", "parquet", files=2)
    data = replace(data, epochs=2, batch_size=100, seed=11, shuffle_rows=1024)
    job = replace(job, model=replace(job.model, tables=TABLES), data=data)
    with LocalJob(job, tmp_path) as running:
        running.start()
        anchor = running.result()
    assert anchor.samples == 4000
    model = saved_model(job, anchor, tmp_path / "model")
    network, tables = train_bags_alone(job)
    dense = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
    torch.testing.assert_close(model.dense, dense, rtol=1e-3, atol=1e-5)
    for found, wanted in zip(model.tables, tables, strict=True):
        torch.testing.assert_close(found, wanted.weight.detach(), rtol=1e-3, atol=1e-5)
