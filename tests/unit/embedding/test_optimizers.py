"""The sparse optimizers against torch's own, on the gradients that an embedding has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cpr_contract.model import SparseOptimizerSpec, state_width
from cpr_trainer.embedding.optimizers import changes_of

ROWS, DIM, STEPS = 40, 6, 12

#: An optimizer, and torch's of the same name for some parameters.
Pair = tuple[SparseOptimizerSpec, Callable[[list[Tensor]], Any]]
PAIRS: dict[str, Pair] = {
    "SGD": (SparseOptimizerSpec("SGD", 0.3), lambda p: torch.optim.SGD(p, lr=0.3)),
    "Adagrad": (SparseOptimizerSpec("Adagrad", 0.2), lambda p: torch.optim.Adagrad(p, lr=0.2, eps=1e-8)),
    "Adagrad, epsilon": (
        SparseOptimizerSpec("Adagrad", 0.2, epsilon=0.05),
        lambda p: torch.optim.Adagrad(p, lr=0.2, eps=0.05),
    ),
    "Adam": (SparseOptimizerSpec("Adam", 0.05), lambda p: torch.optim.SparseAdam(p, lr=0.05)),
    "Adam, all set": (
        SparseOptimizerSpec("Adam", 0.05, epsilon=0.01, beta1=0.7, beta2=0.95),
        lambda p: torch.optim.SparseAdam(p, lr=0.05, betas=(0.7, 0.95), eps=0.01),
    ),
}


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    """Torch warns unless the check of sparse tensors is set."""
    with torch.sparse.check_sparse_tensor_invariants():
        yield


@pytest.mark.parametrize(("ours", "theirs"), PAIRS.values(), ids=PAIRS)
def test_steps_on_sparse_gradients_are_those_of_torch(ours: SparseOptimizerSpec, theirs: Callable[..., Any]) -> None:
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((ROWS, DIM)).astype(np.float32)
    state = np.zeros((ROWS, state_width(ours.kind, DIM)), np.float32)
    parameter = torch.nn.Parameter(torch.from_numpy(rows.copy()))
    optimizer = theirs([parameter])
    for step in range(1, STEPS + 1):
        slots = rng.permutation(ROWS)[: rng.integers(1, ROWS // 2)]
        gradients = rng.standard_normal((len(slots), DIM)).astype(np.float32)
        parameter.grad = torch.sparse_coo_tensor(
            torch.from_numpy(slots)[None], torch.from_numpy(gradients), (ROWS, DIM)
        )
        optimizer.step()
        held = state[slots]
        rows[slots] += changes_of(ours, held, gradients, step)
        state[slots] = held
        torch.testing.assert_close(torch.from_numpy(rows), parameter.detach(), rtol=2e-5, atol=2e-6)
    reference_state = optimizer.state[parameter]
    expected = [reference_state[name] for name in ("sum", "exp_avg", "exp_avg_sq") if name in reference_state]
    if expected:
        torch.testing.assert_close(torch.from_numpy(state), torch.cat(expected, dim=1), rtol=2e-5, atol=2e-6)


def test_row_wise_adagrad_is_its_equation() -> None:
    optimizer = SparseOptimizerSpec("RowWiseAdagrad", 0.5, epsilon=1.0)
    state = np.array([[2.0], [0.0]], np.float32)
    changes = changes_of(optimizer, state, np.array([[1.0, 3.0], [0.0, 0.0]], np.float32), 3)
    assert state.tolist() == [[2 + (1 + 9) / 2], [0]]
    np.testing.assert_allclose(changes, [[-0.5 / (7**0.5 + 1), -1.5 / (7**0.5 + 1)], [0.0, 0.0]], rtol=1e-6)
