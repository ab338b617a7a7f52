"""Exports the dense network as a program that runs without its code: by torch.export, or as ONNX."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from cpr_contract.choices import ExportFormat
from cpr_contract.model import ModelSpec
from cpr_contract.requests import PROGRAMS
from cpr_trainer.embedding.bags import FeatureLayout
from cpr_trainer.embedding.feature_vectors import Features, Jagged
from cpr_trainer.errors import ModelError
from cpr_trainer.model.entrypoint import DLRM, traced
from cprjob_serving.transform import Transform

#: The name of the output of a program: logits, [n] or [n, L].
OUTPUT = "logits"
#: The lengths of sequences for the trace of a program, and for its check.
_TRACED, _CHECKED = (2, 0, 3), ((1,), (3, 1, 0, 4, 2))
_TOLERANCE = 1e-5


def write_network(network: nn.Module, spec: ModelSpec, transform: Transform, form: ExportFormat, folder: Path) -> None:
    """Write the program of a network, in a format that has one. Raises ModelError if the network has none."""
    program = _program(network, spec, transform, form)
    if form == "torch-export":
        torch.export.save(program, folder / PROGRAMS[form])
    else:
        _write_onnx(program, spec, transform, folder / PROGRAMS[form])


class _ByInput(nn.Module):
    """A network that takes the inputs of a transform, in their order, as tensors."""

    def __init__(self, network: nn.Module, spec: ModelSpec) -> None:
        super().__init__()
        self.network = network
        self._spec = spec
        self._layout = FeatureLayout.of(spec) if spec.features else None

    def forward(self, dense: Tensor, *inputs: Tensor) -> Tensor:
        """Return logits, [n] or [n, L]. dense: float32 [n, N]. inputs: see `Transform.inputs`."""
        return traced(self.network, dense, self._embeddings(dense, inputs))

    def _embeddings(self, dense: Tensor, inputs: Sequence[Tensor]) -> Any:
        if self._layout is None:
            return torch.stack([*inputs], dim=1) if len(self._spec.dims) == 1 else tuple(inputs)
        values = iter(inputs)
        found: list[Any] = []
        for feature in self._spec.features:
            vectors = next(values)
            if feature.pooling == "None":
                found.append(Jagged(vectors, next(values), next(values) if feature.weights else None))
            else:
                found.append(vectors)
        pooled = [
            torch.stack([found[place] for place in mine.tolist()], dim=1)
            if len(mine)
            else dense.new_zeros(dense.shape[0], 0, dim)
            for mine, dim in zip(self._layout.pooled, self._spec.band_dims, strict=True)
        ]
        return Features(self._layout, pooled, [[found[place] for place in mine] for mine in self._layout.sequences])


@contextmanager
def _exporting(name: str, form: ExportFormat, remedy: str) -> Iterator[None]:
    """Hide warnings, and raise ModelError for any error: networks are not ours, and exporters raise many kinds."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        cause = str(error).strip().partition("\n")[0]
        raise ModelError(f"The network of {name} has no {form}: {type(error).__name__}: {cause}.", remedy) from error


@torch.no_grad()
def _program(network: nn.Module, spec: ModelSpec, transform: Transform, form: ExportFormat) -> ExportedProgram:
    by_input = _ByInput(network, spec).eval()
    name = spec.entrypoint or DLRM
    remedy = (
        "Its control flow and its shapes must not depend on values of tensors (see torch.export); or export it as"
        " safetensors and serve it with its own code."
    )
    with _exporting(name, form, remedy):
        samples = Dim("samples")
        dims: list[dict[int, Any]] = []
        for feature in transform.features:
            # The vectors of a sequence have a dim of their own.
            of_sequence = [{0: Dim.AUTO}, {0: samples}, {0: Dim.AUTO}][: len(feature.inputs)]
            dims += of_sequence if len(feature.inputs) > 1 else [{0: samples}]
        program = torch.export.export(
            by_input,
            tuple(_example(spec, transform, _TRACED)),
            dynamic_shapes={"dense": {0: samples}, "inputs": tuple(dims)},
        )
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # paths of this machine
        checked = [_example(spec, transform, lengths) for lengths in _CHECKED]
        pairs = [(program.module()(*inputs), by_input(*inputs)) for inputs in checked]
    if not all(torch.allclose(*pair, rtol=_TOLERANCE, atol=_TOLERANCE) for pair in pairs):
        raise ModelError(f"The network of {name} computes something else as {form} than in training.", remedy)
    return program


def _example(spec: ModelSpec, transform: Transform, lengths: Sequence[int]) -> list[Tensor]:
    """Return random inputs for a sample with each of `lengths`, the lengths of its sequences."""
    random = torch.Generator().manual_seed(0)
    dims = {table.name: table.dim for table in transform.tables}
    found = [torch.randn(len(lengths), spec.dense_width, generator=random)]
    for feature in transform.features:
        if len(feature.inputs) == 1:
            found.append(torch.randn(len(lengths), dims[feature.table], generator=random))
            continue
        values = [
            torch.randn(sum(lengths), dims[feature.table], generator=random),
            torch.tensor(lengths),
            torch.rand(sum(lengths), generator=random),
        ]
        found += values[: len(feature.inputs)]
    return found


def _write_onnx(program: ExportedProgram, spec: ModelSpec, transform: Transform, path: Path) -> None:
    if any(find_spec(package) is None for package in ("onnx", "onnxscript")):
        raise ModelError(
            "The format onnx needs the packages onnx and onnxscript.",
            "Install cprjob with its extra onnx there, or take the format torch-export.",
        )
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns about packages that are not needed
    remedy = "Use operators that ONNX has, or take the format torch-export."
    with _exporting(spec.entrypoint or DLRM, "onnx", remedy):
        made = torch.onnx.export(
            program, input_names=transform.inputs, output_names=(OUTPUT,), dynamo=True, verbose=False
        )
    if made is None:
        raise AssertionError("torch.onnx.export returned nothing")
    import onnx_ir  # noqa: PLC0415 -- of the extra onnx

    for node in made.model.graph:
        node.metadata_props.clear()  # traces of this machine's code
        if node.op_type == "ConstantOfShape" and "value" not in node.attributes:
            # By default it is a zero of float32, for which tract takes float64.
            node.attributes.add(onnx_ir.AttrTensor("value", onnx_ir.tensor([0.0], onnx_ir.DataType.FLOAT)))
    made.save(path)
