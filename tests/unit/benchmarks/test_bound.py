"""The bound of `cprjob bench train`: the products of a network, and a system's share of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cpr_contract.model import CrossSpec, FeatureSpec, ModelSpec
from cpr_operator.api.validate import parse_job
from cpr_trainer.model.dlrm import Dlrm
from cprjob_bench.commands import train_bench
from cprjob_bench.commands.windows import Bound, Machine, Window
from cprjob_bench.options import TrainPreset
from cprjob_bench.roles.product_shapes import Dots, Layer, products_of
from cprjob_bench.roles.products import Bound as TimedProducts
from support.local_job import small_job

FOLDER = Path("/store")


def model_of(preset: TrainPreset, **model: Any) -> ModelSpec:
    document = train_bench.document(
        preset, rows=1000, trainers=1, shards=2, workers=1, precision="fp32", interval_s=5, samples=FOLDER, store=FOLDER
    )
    return replace(parse_job(document, uid="bench").model, **model)


MIXED = tuple(replace(table, dim=4 if place else 16) for place, table in enumerate(model_of(TrainPreset.KAGGLE).tables))
MODELS = {
    **{preset.value: model_of(preset) for preset in TrainPreset},
    "DCN V2": model_of(TrainPreset.TERABYTE, cross=CrossSpec(layers=3, rank=32)),
    "several dims": model_of(TrainPreset.KAGGLE, tables=MIXED),
    "shared tables": model_of(
        TrainPreset.KAGGLE, features=tuple(FeatureSpec(name, name, "c1", "Sum") for name in ("x", "y")), numeric=7
    ),
}


def test_kaggle_batch_has_the_products_of_its_layers_and_pairs() -> None:
    found = products_of(MODELS["kaggle"])
    three_each = sum(3 * 2 * layer.inputs * layer.outputs for layer in found.layers)
    assert 2048 * three_each == pytest.approx(5.83e9, rel=1e-3)
    # The inputs of the first layer need no gradient, and the interaction has two batched products.
    assert found.flops(2048) == 2048 * (three_each - 2 * 13 * 512 + 2 * 2 * 27 * 27 * 16) == 5_897_322_496


@pytest.mark.parametrize("name", MODELS)
def test_products_have_the_shapes_of_the_networks_layers(name: str) -> None:
    model = MODELS[name]
    layers = [each for each in Dlrm(model, 1).modules() if isinstance(each, nn.Linear)]
    found = products_of(model)
    shapes = [(layer.inputs, layer.outputs) for layer in found.layers]
    assert sorted(shapes) == sorted((layer.in_features, layer.out_features) for layer in layers)
    assert [layer for layer in found.layers if not layer.to_inputs] == [Layer(model.dense_width, 512, to_inputs=False)]
    vectors = 1 + len(model.feature_tables)
    assert found.dots == (None if model.cross else Dots(vectors, model.embedding_dim))


def test_products_of_a_users_network_are_refused() -> None:
    with pytest.raises(ValueError, match="entrypoint"):
        products_of(model_of(TrainPreset.KAGGLE, entrypoint="package.module:network"))


@pytest.mark.parametrize("cross", [None, CrossSpec(layers=2, rank=3)])
def test_products_are_timed_in_each_layout(tmp_path: Path, cross: CrossSpec | None) -> None:
    job = small_job(tmp_path, samples=1000)
    job = replace(job, model=replace(job.model, cross=cross))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        bound = TimedProducts(job)
        assert len(bound._layouts) == 2
        assert bound.milliseconds(0.001) > 0
    finally:
        torch.set_num_threads(threads)


def window(samples_per_s: float, bound: Bound | None) -> Window:
    return Window(samples_per_s, 1.0, 2.0, {}, {}, {}, None, Machine(1.0, 0.0), bound=bound)


def test_share_of_the_bound_is_the_median_over_windows() -> None:
    single = [window(speed, Bound.of(ms, speed, 2048)) for speed, ms in ((20480, 50), (40960, 40), (10240, 100))]
    assert [each.bound and each.bound.share for each in single] == pytest.approx([0.5, 0.8, 0.5])
    found = train_bench.result({"batch_gflop": 5.9}, {"single": single}).document
    assert found["contenders"]["single"]["share_of_bound"] == pytest.approx(0.5)
    assert found["windows"]["single"][1]["bound"] == pytest.approx({"products_ms": 40, "share": 0.8})


def test_window_without_a_bound_has_no_share() -> None:
    windows = {"single": [window(20480, None)]}
    assert train_bench.result({}, windows).document["contenders"]["single"]["share_of_bound"] is None
