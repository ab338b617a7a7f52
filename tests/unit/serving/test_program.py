"""The program of a network computes the same as the network, for any number of samples, or is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from cpr_contract.choices import ExportFormat
from cpr_contract.model import FeatureSpec, TableSpec
from cpr_contract.requests import PROGRAMS
from cpr_contract.spec import ColumnsSpec, DataSpec, JobSpec
from cpr_trainer.embedding.bags import FeatureLayout
from cpr_trainer.embedding.feature_vectors import Features, Jagged
from cpr_trainer.errors import ModelError
from cpr_trainer.export.model_folder import transform_of
from cpr_trainer.export.program import write_network
from support.programs import run_program
from support.serving import serving_job

pytestmark = pytest.mark.timeout(300)
FORMS: tuple[ExportFormat, ...] = ("torch-export", "onnx")
COLUMNS = ColumnsSpec(("click",), ("views",), ("price",), ())


class Interests(nn.Module):
    """Attends to a sequence, as wide as the longest of its samples."""

    def __init__(self) -> None:
        super().__init__()
        self.top = nn.Linear(2 + 4 + 4 + 2, 1)

    def forward(self, dense: Tensor, features: Any) -> Tensor:
        vectors, there = features["seen"].padded()
        scores = (vectors * features["item"].unsqueeze(1)).sum(dim=2) * features["seen"].padded_weights()
        interest = (torch.where(there, scores, 0).unsqueeze(2) * vectors).sum(dim=1)
        logits: Tensor = self.top(torch.cat([dense, interest, features["item"], features["site"]], dim=1))
        return logits.squeeze(1)


class Mistaken(nn.Module):
    """Takes the number of steps of a value."""

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        total = embeddings.sum(dim=(1, 2))
        return total + 1 if float(dense.sum()) > 0 else total


def job() -> JobSpec:
    tables = TableSpec("item", 50), TableSpec("site", 9, dim=2)
    features = (
        FeatureSpec("seen", "seen", "item", "None", weights="stars"),
        FeatureSpec("item", "item", "item"),
        FeatureSpec("site", "site", "site", "Sum"),
    )
    data = DataSpec("Parquet", "file:///rows.parquet", 1, None, 64, 7, 0, columns=COLUMNS)
    return serving_job(data, tables, features, 2)


@pytest.mark.parametrize("form", FORMS)
def test_program_computes_what_the_network_does_and_depends_on_it_alone(tmp_path: Path, form: ExportFormat) -> None:
    of = job()
    network, transform, layout = Interests().eval(), transform_of(of), FeatureLayout.of(of.model)
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        write_network(network, of.model, transform, form, folder)
    program, again = (tmp_path / folder / PROGRAMS[form] for folder in "ab")
    assert program.read_bytes() == again.read_bytes()
    assert str(Path(__file__).parents[3]).encode() not in program.read_bytes(), "no path of this machine"
    for lengths in ([4], [0, 2], [1, 0, 5, 3]):
        n, k = len(lengths), sum(lengths)
        dense, item, site = torch.randn(n, 2), torch.randn(n, 4), torch.randn(n, 2)
        weights = torch.rand(k)
        seen = Jagged(torch.randn(k, 4), torch.tensor(lengths), weights)
        inputs = (dense, seen.values, seen.lengths, weights, item, site)
        expected = network(dense, Features(layout, [item[:, None], site[:, None]], [[seen], []]))
        named = {name: each.numpy() for name, each in zip(transform.inputs, inputs, strict=True)}
        np.testing.assert_allclose(run_program(program, named), expected.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_types_of_constants_in_onnx_are_stated(tmp_path: Path) -> None:
    """tract 0.23 takes float64 for a `ConstantOfShape` without a value, which ONNX defines as float32."""
    of = job()
    write_network(Interests().eval(), of.model, transform_of(of), "onnx", tmp_path)
    nodes = onnx.load(tmp_path / PROGRAMS["onnx"]).graph.node
    values = [each.attribute for each in nodes if each.op_type == "ConstantOfShape"]
    assert values, "the padding of sequences"
    assert [[(each.name, each.t.data_type) for each in stated] for stated in values] == [
        [("value", onnx.TensorProto.FLOAT)]
    ] * len(values)
    # An index that is a shape is a symbol in tract, which cannot run it.
    by_output = {output: node.op_type for node in nodes for output in node.output}
    outside = [by_output[node.input[2]] for node in nodes if node.op_type == "Where" and node.input[2] in by_output]
    assert outside == ["ReduceSum", "ReduceSum"]


def test_network_that_is_no_program_is_refused(tmp_path: Path) -> None:
    of = serving_job(DataSpec("Synthetic", None, 1, 100, 64, 7, 0), (TableSpec("a", 9), TableSpec("b", 9)), (), None)
    with pytest.raises(ModelError, match=r"The network of a:b has no torch-export: .+export it as safetensors"):
        write_network(Mistaken(), of.model, transform_of(of), "torch-export", tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_format_whose_packages_are_missing_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = job()
    monkeypatch.setattr("cpr_trainer.export.program.find_spec", lambda _package: None)
    with pytest.raises(ModelError, match="Install cprjob with its extra onnx"):
        write_network(Interests(), of.model, transform_of(of), "onnx", tmp_path)


def test_a_job_without_features_has_one_for_each_table() -> None:
    of = serving_job(DataSpec("Synthetic", None, 1, 100, 64, 7, 0), (TableSpec("a", 9), TableSpec("b", 9)), (), None)
    transform = transform_of(replace(of, data=replace(of.data, format="Criteo")))
    assert transform == transform_of(of), "synthetic samples have the Criteo layout"
    assert [(each.name, each.column, each.table) for each in transform.features] == [("a", "15", "a"), ("b", "16", "b")]
    assert transform.inputs == ("dense", "a", "b")
    assert [each.column for each in transform.numeric] == [str(number) for number in range(2, 15)]
