"""The sparse optimizers against FBGEMM's fused ones, which TorchRec trains with. On processors FBGEMM has no Adam."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from cpr_contract.model import SparseOptimizerSpec, state_width
from cpr_trainer.embedding.optimizers import changes_of

REPOSITORY = Path(__file__).parents[3]
PEERS_PYTHON = REPOSITORY / "benchmarks" / "baselines" / ".venv" / "bin" / "python"
pytestmark = [
    pytest.mark.dist,
    pytest.mark.skipif(not PEERS_PYTHON.exists(), reason="FBGEMM is not installed: run `make peers`"),
]
ROWS, DIM, STEPS, IDS = 60, 8, 20, 30


@pytest.mark.parametrize("epsilon", [1e-8, 1e-2])
@pytest.mark.parametrize("kind", ["SGD", "RowWiseAdagrad", "Adagrad"])
def test_rows_equal_those_of_fbgemm(
    tmp_path: Path, kind: Literal["SGD", "RowWiseAdagrad", "Adagrad"], epsilon: float
) -> None:
    rng = np.random.default_rng(6)
    optimizer = SparseOptimizerSpec(kind, 0.1, epsilon)
    rows = rng.standard_normal((ROWS, DIM)).astype(np.float32)
    ids = rng.integers(0, ROWS, (STEPS, IDS))
    gradients = rng.standard_normal((STEPS, IDS, DIM)).astype(np.float32)
    given = {"kind": kind, "learning_rate": 0.1, "epsilon": epsilon, "rows": rows, "ids": ids, "gradients": gradients}
    np.savez(tmp_path / "in.npz", **given)  # type: ignore[arg-type]
    script = REPOSITORY / "tests" / "support" / "fbgemm_steps.py"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([PEERS_PYTHON, script, tmp_path / "in.npz", tmp_path / "out.npz"], env=environment, check=True)
    state = np.zeros((ROWS, state_width(optimizer.kind, DIM)), np.float32)
    for step in range(STEPS):
        slots, place = np.unique(ids[step], return_inverse=True)
        summed = np.zeros((len(slots), DIM), np.float32)
        np.add.at(summed, place, gradients[step])
        held = state[slots]
        rows[slots] += changes_of(optimizer, held, summed, step + 1)
        state[slots] = held
    np.testing.assert_allclose(rows, np.load(tmp_path / "out.npz")["rows"], rtol=1e-5, atol=1e-5)
