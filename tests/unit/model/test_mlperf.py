"""The manifest of MLPerf's DLRM-DCNv2, scaled down, has the loss curve of plain torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from cpr_contract.model import ModelSpec
from cpr_trainer.data.open import files_of, open_dataset
from cpr_trainer.model.dlrm import Dlrm
from cpr_trainer.single_process import SingleProcessTrainer
from cpr_trainer.trainer.scores import ScoredSlice
from cprjob.reading import read_job
from support.torch_dlrm import TorchRecDlrm

ROOT = Path(__file__).parents[3]
#: `--multi_hot_sizes` of the reference implementation, at most 12 here.
SIZES = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 12, 12, 10, 3, 1, 1)
BATCH, STEPS, MOST_ROWS, DIM, LAYERS, RANK = 128, 60, 300, 16, 3, 8
BOTTOM, TOP = (32, DIM), (32, 16, 1)
RATE, EPSILON = 0.02, 1e-8
#: Sums in another order differ in the last places of a float32. Measured: at most 1.8e-7, in any of the steps.
ROUNDING = 8 * float(np.finfo(np.float32).eps)
WARM_UP, DECAY_START, DECAY_STEPS = 10, 36, 20


def write_day(folder: Path, name: str, rows: tuple[int, ...], samples: int) -> None:
    """Write a day as the reference reads it: labels and numbers as .npy, a matrix for each category as .npz."""
    random = np.random.default_rng(5)
    bags = {str(place): random.integers(0, count, (samples, size), dtype=np.int32)
            for place, (count, size) in enumerate(zip(rows, SIZES, strict=True))}  # fmt: skip
    numbers = np.log1p(random.integers(0, 500, (samples, 13))).astype(np.float32)
    signal = 0.6 * (numbers[:, 0] - 5) + np.where(bags["4"] % 2, 0.5, -0.5).sum(axis=1)
    np.save(
        folder / f"{name}_labels.npy", (random.random(samples) < 1 / (1 + np.exp(-signal))).astype(np.int32)[:, None]
    )
    np.save(folder / f"{name}_dense.npy", numbers)
    np.savez(folder / f"{name}_sparse_multi_hot.npz", **bags)  # type: ignore[arg-type]


def convert() -> None:
    """Run the page's code in the current folder."""
    page = (ROOT / "docs" / "migrate-mlperf.md").read_text("utf-8")
    exec(page.partition("```python\n")[2].partition("```")[0], {})  # noqa: S102 -- code of a page


def scaled_down(folder: Path) -> dict[str, Any]:
    """Return the `spec` of the manifest with small tables and layers, and a schedule as the reference has it."""
    spec: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "mlperf-dcnv2.yaml").read_text("utf-8"))["spec"]
    model = spec["model"]
    for table in model["tables"]:
        table["rows"] = min(table["rows"], MOST_ROWS)
    model |= {"embeddingDim": DIM, "bottomMlp": [*BOTTOM], "topMlp": [*TOP]}
    model["interaction"] |= {"layers": LAYERS, "rank": RANK}
    schedule = [
        {"kind": "Warmup", "steps": WARM_UP},
        {"kind": "Constant", "steps": DECAY_START - WARM_UP - 1},
        {"kind": "Polynomial", "steps": DECAY_STEPS, "power": 2},
    ]
    for name in ("denseOptimizer", "sparseOptimizer"):
        model[name] |= {"learningRate": RATE, "schedule": schedule}
    spec["data"] |= {"uri": f"{folder}/day_0.parquet", "batchSize": BATCH, "shuffleRows": 0}
    spec["trainers"] = {"replicas": 1, "workers": 1}
    del spec["evaluation"]  # scores without training
    return spec


def rate(step: int) -> float:
    """Return the rate in a step, from 1, as the page describes that of `LRPolicyScheduler`."""
    if step <= WARM_UP:
        return RATE * step / WARM_UP
    done = min(max(step - DECAY_START, 0), DECAY_STEPS)
    return RATE * (1 - done / DECAY_STEPS) ** 2


class PlainModel(nn.Module):
    """`EmbeddingBag`s and TorchRec's DLRM_DCN, with the first values of a trainer."""

    def __init__(self, spec: ModelSpec, trainer: SingleProcessTrainer) -> None:
        super().__init__()
        self.tables = nn.ModuleList()
        placement, arena = trainer.tables.placement, trainer.tables.arena
        for place, table in enumerate(spec.tables):
            first = arena.rows[placement.places(placement.offsets[place] + np.arange(table.rows))]
            weight = torch.from_numpy(first.copy())
            self.tables.append(nn.EmbeddingBag.from_pretrained(weight, freeze=False, mode="sum"))
        self.network = TorchRecDlrm(13, len(self.tables), BOTTOM, TOP, LAYERS, RANK)
        network = trainer.replica.model
        assert isinstance(network, Dlrm)
        with torch.no_grad():
            for mine, its in zip(self.ordered(), network.parameters(), strict=True):
                mine.copy_(its.view_as(mine))

    def ordered(self) -> Iterator[Tensor]:
        """Yield the layers in the order of ours: bottom, each layer of the cross network, top."""
        yield from self.network.dense_arch.parameters()
        cross = dict(self.network.inter_arch.named_parameters())
        for layer in range(LAYERS):
            yield from (cross[f"crossnet.{name}.{layer}"] for name in ("V_kernels", "W_kernels", "bias"))
        yield from self.network.over_arch.parameters()

    def losses(self, folder: Path) -> Iterator[float]:
        """Train on a day in its order by torch's Adagrad, and yield the loss of each step."""
        labels = torch.from_numpy(np.load(folder / "day_0_labels.npy")).float().squeeze(1)
        numbers = torch.from_numpy(np.load(folder / "day_0_dense.npy"))
        with np.load(folder / "day_0_sparse_multi_hot.npz") as file:
            bags = [torch.from_numpy(file[str(place)]) for place in range(len(self.tables))]
        optimizer = torch.optim.Adagrad(self.parameters(), eps=EPSILON)
        for step in range(1, STEPS + 1):
            rows = slice((step - 1) * BATCH, step * BATCH)
            pooled = [table(bag[rows]) for table, bag in zip(self.tables, bags, strict=True)]
            logits = self.network(numbers[rows], torch.stack(pooled, dim=1))
            loss = binary_cross_entropy_with_logits(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.param_groups[0]["lr"] = rate(step)
            optimizer.step()
            yield loss.item()


def test_loss_curve_of_the_scaled_down_benchmark_is_that_of_plain_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = scaled_down(tmp_path)
    write_day(tmp_path, "day_0", tuple(table["rows"] for table in spec["model"]["tables"]), STEPS * BATCH)
    convert()
    job = read_job(spec, own_network=False)
    trainer = SingleProcessTrainer(job, open_dataset(job.data, job.model, files_of(job)), job.data.seed)
    expected = list(PlainModel(job.model, trainer).losses(tmp_path))
    found, add = list[float](), trainer.scores.add

    def record(scored: ScoredSlice) -> None:
        found.append(scored.loss_share)
        add(scored)

    monkeypatch.setattr(trainer.scores, "add", record)
    trainer.train(lambda _: None)
    assert np.mean(expected[-5:]) < np.mean(expected[:5]) - 0.05, "it learns"
    np.testing.assert_allclose(found, expected, rtol=ROUNDING)
