"""Reference models of single processes, compared with torch and with explicit optimizers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cpr_contract.spec import JobSpec
from cpr_trainer.data.open import files_of, open_dataset
from cpr_trainer.data.order import BatchOrder, held_out
from cpr_trainer.embedding.bags import Bags
from cpr_trainer.embedding.segments import initial_rows
from cpr_trainer.model.dlrm import Dlrm
from cpr_trainer.notebook import Fitted
from processes.conftest import Reference
from processes.jobs import JOBS, SAMPLES
from support.local_job import LocalJob
from support.model import assert_close, saved_model, train_alone
from support.oracle import calibration_of, exact_auc, log_loss


def rows_of(fitted: Fitted) -> list[torch.Tensor]:
    return [torch.from_numpy(fitted.rows(table.name, range(table.rows))) for table in fitted.model.tables]


def parameters_of(network: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


@pytest.mark.parametrize("name", ["plain", "dims", "recipe", "two_labels", "weighted"])
def test_reference_is_the_oracle_to_rounding(name: str, reference: Reference) -> None:
    job, fitted = reference(name)
    expected, score = train_alone(job), fitted.progressive
    torch.testing.assert_close(parameters_of(fitted.network), expected.dense, rtol=1e-3, atol=1e-5)
    for rows, expected_rows in zip(rows_of(fitted), expected.tables, strict=True):
        torch.testing.assert_close(rows, expected_rows, rtol=1e-3, atol=1e-5)
    assert score.auc == pytest.approx(expected.auc, abs=1e-4)
    assert score.log_loss == pytest.approx(expected.log_loss, abs=1e-5)
    assert score.samples == SAMPLES * 4 // 5
    assert score.metrics == pytest.approx(expected.metrics, abs=1e-4)


def test_held_out_samples_score_by_their_weights(reference: Reference) -> None:
    job, fitted = reference("weighted")
    rows = held_out(job.data, fitted.dataset.layout.rows)
    batch, found = fitted.batch(rows), fitted.held_out
    chances, weights = fitted.predict(batch).astype(np.float64), batch.sample_weights
    assert found is not None
    assert weights is not None
    assert 0.6 < np.mean(weights > 0) < 0.9
    logits = np.log(chances / (1 - chances))
    assert found.samples == len(rows)
    assert found.auc == pytest.approx(exact_auc(logits, batch.labels, weights), abs=1e-3)
    assert found.log_loss == pytest.approx(log_loss(logits, batch.labels, weights), rel=1e-5)
    assert found.metrics["calibration"] == pytest.approx(calibration_of(logits, batch.labels, weights), rel=1e-3)


def train_bags_alone(job: JobSpec) -> tuple[Dlrm, list[torch.nn.EmbeddingBag]]:
    """Train a DLRM over torch's `EmbeddingBag`s, with an explicit row-wise Adagrad over whole tables."""
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


def test_reference_of_bags_is_torchs_embedding_bags_to_rounding(reference: Reference) -> None:
    job, fitted = reference("bags")
    network, tables = train_bags_alone(job)
    torch.testing.assert_close(parameters_of(fitted.network), parameters_of(network), rtol=1e-3, atol=1e-5)
    for rows, expected_rows in zip(rows_of(fitted), tables, strict=True):
        torch.testing.assert_close(rows, expected_rows.weight.detach(), rtol=1e-3, atol=1e-5)


@pytest.mark.dist
def test_prefetched_rows_are_those_of_three_steps_before(tmp_path: Path) -> None:
    """No single process of the product prefetches rows, so the job itself is compared with the oracle."""
    job = replace(JOBS["plain"](tmp_path), prefetch=3)
    with LocalJob(job, tmp_path) as running:
        running.start()
        anchor = running.result()
    assert_close(saved_model(job, anchor, tmp_path / "model"), train_alone(job))
