"""The single-process oracle: DLRM training with whole tables in memory and the optimizers written out.

Shares with the product the dense network with its own loss and metrics, the datasets and the order of samples, nothing
else: embedding gradients, optimizers, the mean loss, AUC and log loss are computed here on their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cpr_contract.model import ModelSpec, OptimizerSpec, SparseOptimizerSpec
from cpr_trainer.data.dataset import Dataset
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.model.entrypoint import CustomLoss, CustomMetrics, build_network
from support.torch_rates import torch_rates

#: (table, rows int64 [k]) -> first values, float32 [k, D].
InitialRows = Callable[[int, NDArray[np.int64]], NDArray[np.float32]]


@dataclass(frozen=True, slots=True, eq=False)
class OracleResult:
    """The result of a run. losses: mean loss of each step's batch before it trains. auc, log_loss: of the first label,
    progressive, without the
    first fifth of the samples. metrics: those of all labels, if there are several, and the network's own. dense:
    parameters in the model's order, flat float32 [p]. tables: float32 [rows, D] each. states: what the optimizers keep,
    float32 [rows, W] each, W = 0 for SGD.
    """

    losses: tuple[float, ...]
    auc: float
    log_loss: float
    dense: Tensor
    tables: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    metrics: dict[str, float]


def train(  # noqa: PLR0913 -- what is trained, on what, from where
    model: ModelSpec,
    dataset: Dataset,
    order: BatchOrder,
    seed: int,
    initial_rows: InitialRows,
    *,
    missed_steps: int = 0,
    unscored: range = range(0),
) -> OracleResult:
    """Train all steps of `order`; the dense network starts from `seed`, the tables from `initial_rows`.

    A step reads rows as they were before the last `missed_steps` steps. The samples of steps `unscored` are trained
    like all others, but the scores leave them out.
    """
    network = build_network(model, seed)
    optimizer = torch_optimizer(model.dense_optimizer, network.parameters())
    rates = torch_rates(model.dense_optimizer, order.steps)
    kinds = [table.optimizer or model.sparse_optimizer for table in model.tables]
    rates_of_tables = [torch_rates(kind, order.steps) for kind in kinds]
    tables = [torch.from_numpy(initial_rows(t, np.arange(spec.rows))).clone() for t, spec in enumerate(model.tables)]
    states = [
        torch.zeros(len(table), {"SGD": 0, "RowWiseAdagrad": 1, "Adagrad": dim, "Adam": 2 * dim}[kind.kind])
        for table, kind, dim in zip(tables, kinds, (table.shape[1] for table in tables), strict=True)
    ]
    one_dim = len({table.shape[1] for table in tables}) == 1
    past: deque[list[Tensor]] = deque(maxlen=missed_steps + 1)
    losses, logits, labels, weights = [], [], [], []
    for step in range(1, order.steps + 1):
        batch = dataset.take(order.batch_indices(step))
        ids, truth = torch.from_numpy(batch.ids), torch.from_numpy(batch.labels)
        past.append([table.clone() for table in tables])
        vectors = [table[ids[:, t]].requires_grad_() for t, table in enumerate(past[0])]
        score = network(torch.from_numpy(batch.dense), torch.stack(vectors, dim=1) if one_dim else tuple(vectors))
        weighted = None if batch.sample_weights is None else torch.from_numpy(batch.sample_weights)
        loss = mean_loss(network, score, truth, weighted)
        optimizer.zero_grad()
        loss.backward()
        if (limit := model.dense_optimizer.clip_norm) is not None:
            torch.nn.utils.clip_grad_norm_(network.parameters(), limit)
        optimizer.param_groups[0]["lr"] = rates[step - 1]
        optimizer.step()
        for t, (kind, table, state) in enumerate(zip(kinds, tables, states, strict=True)):
            gradient = vectors[t].grad
            assert gradient is not None
            at_this_rate = replace(kind, learning_rate=rates_of_tables[t][step - 1])
            update_rows(at_this_rate, table, state, ids[:, t], gradient, step)
        losses.append(loss.item())
        logits.append(score.detach())
        labels.append(truth)
        weights.append(torch.ones(len(truth)) if weighted is None else weighted)
    scored = torch.arange(order.total_samples) >= order.total_samples // 5
    for step in unscored:
        scored[(step - 1) * order.batch_size : step * order.batch_size] = False
    all_logits, all_labels = torch.cat(logits)[scored], torch.cat(labels)[scored]
    of_all = torch.cat(weights)[scored].double().numpy()
    found = [
        (exact_auc(score, truth, of_all), log_loss(score, truth, of_all), calibration_of(score, truth, of_all))
        for score, truth, _ in zip(columns(all_logits), columns(all_labels), model.labels, strict=False)
    ]
    metrics = {"calibration": found[0][2]}
    if len(model.labels) > 1:
        metrics = {}
        for name, (auc, loss_of_label, calibration) in zip(model.labels, found, strict=True):
            metrics |= {f"{name}.auc": auc, f"{name}.logloss": loss_of_label, f"{name}.calibration": calibration}
    if isinstance(network, CustomMetrics):
        metrics |= network.metrics(network.metric_sums(all_logits, all_labels).double())
    return OracleResult(
        losses=tuple(losses),
        auc=found[0][0],
        log_loss=found[0][1],
        dense=torch.cat([parameter.detach().flatten() for parameter in network.parameters()]),
        tables=tuple(tables),
        states=tuple(states),
        metrics=metrics,
    )


def torch_optimizer(spec: OptimizerSpec, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return torch's own optimizer of the dense network."""
    rate, decay, betas = spec.learning_rate, spec.weight_decay, (spec.beta1, spec.beta2)
    match spec.kind:
        case "SGD":
            momentum, nesterov = spec.momentum, spec.nesterov
            return torch.optim.SGD(parameters, lr=rate, momentum=momentum, nesterov=nesterov, weight_decay=decay)
        case "Adagrad":
            return torch.optim.Adagrad(parameters, lr=rate, eps=spec.epsilon, weight_decay=decay)
        case "Adam":
            return torch.optim.Adam(parameters, lr=rate, betas=betas, eps=spec.epsilon, weight_decay=decay)
        case "AdamW":
            return torch.optim.AdamW(parameters, lr=rate, betas=betas, eps=spec.epsilon, weight_decay=decay)
        case _:
            assert_never(spec.kind)


def mean_loss(network: torch.nn.Module, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the loss that a batch is trained with, a scalar. weights: float32 [n], of a single label."""
    if isinstance(network, CustomLoss):
        return network.sample_losses(logits, labels).mean()
    mean: Tensor = torch.nn.BCEWithLogitsLoss(weight=weights)(logits, labels)
    return mean


def columns(values: Tensor) -> tuple[NDArray[np.float64], ...]:
    """Return each label's column of logits or labels, [n] or [n, L]."""
    return tuple(values.double().view(len(values), -1).numpy().T)


def log_loss(scores: NDArray[np.float64], labels: NDArray[Any], weights: NDArray[Any] | None = None) -> float:
    """Return the mean of log(1 + exp(-s)) over positives and log(1 + exp(s)) over negatives, in nats."""
    return float(np.average(np.logaddexp(0, np.where(labels == 1, -scores, scores)), weights=weights))


def calibration_of(scores: NDArray[np.float64], labels: NDArray[Any], weights: NDArray[Any]) -> float:
    """Return the sum of predictions over the sum of labels, both weighted."""
    return float(weights @ (1 / (1 + np.exp(-scores))) / (weights @ labels))


def update_rows(  # noqa: PLR0913, PLR0917 -- all that one step needs
    optimizer: SparseOptimizerSpec, table: Tensor, state: Tensor, ids: Tensor, gradients: Tensor, step: int
) -> None:
    """Apply the sparse optimizer in place, once for each unique row with its summed gradient.

    table: float32 [rows, D]. state: float32 [rows, W]. ids: int64 [n], repeats allowed. gradients: [n, D].
    """
    rows, place = torch.unique(ids, return_inverse=True)
    dim, rate = table.shape[1], optimizer.learning_rate
    summed = torch.zeros(len(rows), dim).index_add_(0, place, gradients)
    if optimizer.kind == "SGD":
        table[rows] -= rate * summed
        return
    if optimizer.kind == "Adam":
        first, second = optimizer.beta1, optimizer.beta2
        mean = first * state[rows, :dim] + (1 - first) * summed
        square = second * state[rows, dim:] + (1 - second) * summed.square()
        state[rows] = torch.cat((mean, square), dim=1)
        size = rate * (1 - second**step) ** 0.5 / (1 - first**step)
        table[rows] -= size * mean / (square.sqrt() + optimizer.epsilon)
        return
    squared = summed.square()
    state[rows] += squared.mean(dim=1, keepdim=True) if optimizer.kind == "RowWiseAdagrad" else squared
    table[rows] -= rate * summed / (state[rows].sqrt() + optimizer.epsilon)


def exact_auc(scores: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any] | None = None) -> float:
    """Return the share of (positive, negative) pairs in the right order, a tie counting half.

    Each pair has the product of its weights.
    """
    values, place = np.unique(scores, return_inverse=True)
    weights = np.ones(len(scores)) if weights is None else weights
    positives, negatives = (np.bincount(place, weights * each, len(values)) for each in (labels, 1 - labels))
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + negatives / 2)).sum() / (positives.sum() * negatives.sum()))


def random_rows(seed: int, dim: int) -> InitialRows:
    """Return first values for `train`, uniform in +-1 / sqrt(dim); a row's values follow from (seed, table, row)."""

    def rows_of(table: int, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        whole = np.random.default_rng((seed, table)).random((int(rows.max(initial=0)) + 1, dim), np.float32)
        return (2 * whole[rows] - 1) * np.float32(dim**-0.5)

    return rows_of
