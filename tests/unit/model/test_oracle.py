from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cpr_contract.model import ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.data.synthetic import SyntheticDataset
from cpr_trainer.evaluation import ProgressiveValidation
from cpr_trainer.model.entrypoint import loss_share
from cpr_trainer.model.replica import DenseReplica
from support.oracle import exact_auc, random_rows, train, update_rows
from support.plain_batches import single_ids

TABLES = tuple(TableSpec(f"t{place}", 500) for place in range(6))
MODEL = ModelSpec(
    embedding_dim=8,
    bottom_mlp=(16, 8),
    top_mlp=(32, 1),
    tables=TABLES,
    dense_optimizer=OptimizerSpec("Adagrad", 0.03),
    sparse_optimizer=SparseOptimizerSpec("RowWiseAdagrad", 0.05),
)
SGD = replace(MODEL, dense_optimizer=OptimizerSpec("SGD", 0.1), sparse_optimizer=SparseOptimizerSpec("SGD", 0.1))


def test_row_wise_adagrad_is_its_formula_on_each_unique_row() -> None:
    table, state = torch.ones(4, 2), torch.tensor([[0.0], [1.0], [0.0], [0.0]])
    gradients = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 0.0]])
    update_rows(MODEL.sparse_optimizer, table, state, torch.tensor([1, 2, 1]), gradients, 1)
    assert state.flatten().tolist() == [0, 1 + (4 + 4) / 2, (9 + 16) / 2, 0]
    expected = torch.ones(4, 2)
    expected[1] -= 0.05 * torch.tensor([2.0, 2.0]) / 5**0.5
    expected[2] -= 0.05 * torch.tensor([3.0, 4.0]) / 12.5**0.5
    torch.testing.assert_close(table, expected)


def test_sparse_sgd_is_what_torch_does_to_an_embedding() -> None:
    order = BatchOrder(300, 300, 32, seed=1)
    dataset, first = SyntheticDataset(300, 1, TABLES), random_rows(1, 8)
    result = train(SGD, dataset, order, 1, first)
    replica = DenseReplica(SGD, 1)
    bags = [
        torch.nn.Embedding.from_pretrained(torch.from_numpy(first(t, np.arange(500))), freeze=False) for t in range(6)
    ]
    optimizer = torch.optim.SGD([bag.weight for bag in bags], lr=0.1)
    for step in range(1, order.steps + 1):
        batch = dataset.take(order.batch_indices(step))
        ids = torch.from_numpy(single_ids(batch))
        vectors = torch.stack([bag(ids[:, t]) for t, bag in enumerate(bags)], dim=1)
        replica.zero_gradients()
        optimizer.zero_grad()
        logits = replica.model(torch.from_numpy(batch.dense), vectors)
        loss = loss_share(replica.model, logits, torch.from_numpy(batch.labels), len(batch))
        loss.backward()
        optimizer.step()
        replica.step(step)
        assert loss.item() == pytest.approx(result.losses[step - 1], rel=1e-5)
    for bag, table in zip(bags, result.tables, strict=True):
        torch.testing.assert_close(bag.weight.detach(), table)
    torch.testing.assert_close(replica.parameters, result.dense)


def test_the_oracle_learns_the_planted_signal() -> None:
    dataset = SyntheticDataset(24_000, 1, TABLES)
    result = train(MODEL, dataset, BatchOrder(24_000, 24_000, 64, seed=1), 1, random_rows(1, 8))
    assert result.auc > 0.78
    assert result.log_loss < 0.45
    assert np.mean(result.losses[-50:]) < np.mean(result.losses[:50]) - 0.05


def test_without_learning_there_is_no_signal_to_score() -> None:
    still = replace(MODEL, dense_optimizer=OptimizerSpec("SGD", 0.0), sparse_optimizer=SparseOptimizerSpec("SGD", 0.0))
    dataset = SyntheticDataset(6000, 1, TABLES)
    assert train(still, dataset, BatchOrder(6000, 6000, 500, seed=1), 1, random_rows(1, 8)).auc < 0.68


def test_the_products_score_is_the_oracles() -> None:
    order = BatchOrder(5000, 5000, 64, seed=1)
    dataset, replica = SyntheticDataset(5000, 1, TABLES), DenseReplica(SGD, 1)
    frozen = replace(SGD, sparse_optimizer=SparseOptimizerSpec("SGD", 0.0))
    first = random_rows(1, 8)
    result = train(frozen, dataset, order, 1, first)
    scores = [ProgressiveValidation(order.total_samples) for _ in range(3)]
    for step in range(1, order.steps + 1):
        replica.zero_gradients()
        for rank, score in enumerate(scores):
            part = order.slice_of(step, rank, len(scores))
            batch = dataset.take(order.indices_of(part))
            ids = single_ids(batch)
            vectors = torch.stack([torch.from_numpy(first(t, ids[:, t])) for t in range(6)], dim=1)
            logits, labels = replica.model(torch.from_numpy(batch.dense), vectors), torch.from_numpy(batch.labels)
            score.add(logits, labels, part.start)
            loss_share(replica.model, logits, labels, len(order.slice_of(step))).backward()
        replica.step(step)
    merged = ProgressiveValidation(order.total_samples)
    merged.merge(torch.stack([score.take_delta() for score in scores]).sum(dim=0))
    assert merged.samples == 4000
    assert merged.auc() == pytest.approx(result.auc, abs=1e-3)
    assert merged.log_loss() == pytest.approx(result.log_loss, rel=1e-5)


def test_exact_auc_counts_pairs() -> None:
    scores, labels = np.array([1.0, 2.0, 2.0, 3.0, 0.0]), np.array([0.0, 1.0, 0.0, 1.0, 1.0])
    pairs = [(p > n) + (p == n) / 2 for p in scores[labels == 1] for n in scores[labels == 0]]
    assert exact_auc(scores, labels) == pytest.approx(np.mean(pairs))
