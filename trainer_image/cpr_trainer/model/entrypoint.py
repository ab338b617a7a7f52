"""Builds a job's dense network (`model.entrypoint`, or the DLRM) on its device, checks it, and calls its methods.

docs/models.md describes the factory and the network with their shapes; optional methods are in the protocols below. An
error of a network's own code is a ModelError, in the probe and later, and so is a result of another shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import nan
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from cpr_contract.choices import Device, Precision
from cpr_contract.model import ModelSpec
from cpr_trainer.embedding.bags import FeatureLayout
from cpr_trainer.entrypoints import load, user_code
from cpr_trainer.errors import ModelError
from cpr_trainer.features import Features, Jagged

DLRM = "cpr_trainer.model.dlrm:Dlrm"
#: Returns the dense network of a model, from its spec and a seed.
Factory = Callable[[ModelSpec, int], object]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
#: Two, so that one value a batch is not accepted as one a sample.
_PROBED_SAMPLES = 2
#: Metrics are written to reports, and to the termination message of a trainer.
_MAX_METRICS, _MAX_NAME = 8, 32


@runtime_checkable
class Overlapping(Protocol):
    """A network with work that needs no embeddings: it is done while the lookups are in flight."""

    def before_embeddings(self, dense: Tensor, /) -> Any:
        """Return whatever `with_embeddings` needs of dense, float32 [n, N]."""

    def with_embeddings(self, begun: Any, embeddings: Any, /) -> Tensor:
        """Return logits, [n] or [n, L], from the result of `before_embeddings` and embeddings."""


@runtime_checkable
class CustomLoss(Protocol):
    """A network with its own loss; others have the log loss, the mean over labels."""

    def sample_losses(self, logits: Tensor, labels: Tensor, /) -> Tensor:
        """Return the loss of each sample, [n], from logits and labels, float32 [n] or [n, L]."""


@runtime_checkable
class CustomMetrics(Protocol):
    """A network with its own metrics, from sums: those of slices, steps and trainers are added up."""

    def metric_sums(self, logits: Tensor, labels: Tensor, /) -> Tensor:
        """Return k sums over some samples, [k], from logits and labels, float32 [n] or [n, L].

        If samples have weights, these are a third argument, float32 [n].
        """

    def metrics(self, sums: Tensor, /) -> Mapping[str, float]:
        """Return metrics by name, 8 at most, from the sums over all samples, float64 [k].

        None, a value that is not a number, and a ZeroDivisionError mark a metric as undefined for these samples.
        """


def build_network(
    spec: ModelSpec,
    seed: int,
    precision: Precision = "fp32",
    factory: Factory | None = None,
    device: Device = "cpu",
) -> nn.Module:
    """Return the dense network of a model, on `device`; torch's random numbers follow from `seed` while it is built.

    A `factory` replaces the import of `spec.entrypoint`. Raises ModelError if the device is missing, the network cannot
    be built, or a first pass in `precision` shows that it does not fit.
    """
    place = open_device(device)
    name = spec.entrypoint or DLRM
    factory = factory or load(name, "spec.model.entrypoint", ModelError)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        remedy = "It is called with the job's ModelSpec and a seed; correct it, or spec.model."
        with user_code(f"The entrypoint {name} failed", remedy, ModelError):
            network = factory(spec, seed)
        if not isinstance(network, nn.Module):
            raise ModelError(
                f"The entrypoint {name} returned {type(network).__name__}, not a torch.nn.Module.",
                "It has to return the dense network.",
            )
        with calls(network, "to"):
            network.to(place)
        _probe(network, spec, DTYPES[precision], name, place)
    return network


def open_device(name: Device) -> torch.device:
    """Return a job's device. Raises ModelError if it is a GPU and torch finds none."""
    if name == "cuda" and not torch.cuda.is_available():
        built = "with" if torch.version.cuda else "without"
        raise ModelError(
            f"spec.trainers.device is cuda, and torch, built {built} CUDA, finds no GPU.",
            "Request nvidia.com/gpu in the resources of main in spec.trainers.template, and use a trainer image with "
            "a CUDA build of torch; or set spec.trainers.device to cpu.",
        )
    return torch.device(name)


def start(network: nn.Module, dense: Tensor, outputs: Sequence[int] = ()) -> Callable[[Any], Tensor]:
    """Begin a forward pass with dense, float32 [n, N]; return its second part, from embeddings to logits [n, *outputs].

    Both parts raise ModelError.
    """
    method, end = "forward", partial(network, dense)
    if isinstance(network, Overlapping):
        with calls(network, "before_embeddings"):
            begun = network.before_embeddings(dense)
        method, end = "with_embeddings", partial(network.with_embeddings, begun)

    def finish(embeddings: Any) -> Tensor:
        with calls(network, method):
            logits = end(embeddings)
        require_shape(network, method, logits, (len(dense), *outputs))
        return logits  # type: ignore[no-any-return]

    return finish


def traced(network: nn.Module, dense: Tensor, embeddings: Any) -> Tensor:
    """Return logits of a forward pass that torch.export traces; errors of the network pass unchanged."""
    if isinstance(network, Overlapping):
        return network.with_embeddings(network.before_embeddings(dense), embeddings)
    return network(dense, embeddings)  # type: ignore[no-any-return]


def loss_share(
    network: nn.Module, logits: Tensor, labels: Tensor, batch_size: int, weights: Tensor | None = None
) -> Tensor:
    """Return a slice's share of the batch's mean loss, a scalar: nats, if the network has no loss of its own.

    logits, labels: float32 [n] or [n, L], the slice. batch_size: samples of the whole batch, all trainers
    together; so shares, and gradients, add up over trainers. weights: float32 [n], of the samples: the loss of each is
    multiplied by its weight, and the sum divided by the number of samples, as `BCEWithLogitsLoss(weight)` does. Raises
    ModelError.
    """
    if isinstance(network, CustomLoss):
        with calls(network, "sample_losses"):
            losses = network.sample_losses(logits, labels)
        require_shape(network, "sample_losses", losses, labels.shape[:1])
        return (losses if weights is None else losses * weights).sum() / batch_size
    if weights is not None:
        weights = weights.view(-1, *(1 for _ in labels.shape[1:]))
    losses = nn.functional.binary_cross_entropy_with_logits(logits, labels, weights, reduction="sum")
    return losses / (batch_size * labels.shape[1:].numel())


def gradients(network: nn.Module, loss: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Return the gradients of a loss, None for a leaf that it does not depend on. Raises ModelError."""
    with calls(network, "the backward pass"):
        return torch.autograd.grad(loss, leaves, allow_unused=True)


def metric_sums(
    network: CustomMetrics, logits: Tensor, labels: Tensor, weights: Tensor | None = None, count: int | None = None
) -> Tensor:
    """Return the sums of a network's own metrics over some samples, [k]; k is `count` if that is stated.

    logits, labels: float32 [n] or [n, L]. weights: float32 [n], if samples have weights. Raises ModelError.
    """
    with calls(network, "metric_sums"):
        sums = network.metric_sums(logits, labels, *(() if weights is None else (weights,)))
    shape = (len(sums) if isinstance(sums, Tensor) and sums.dim() else 1,) if count is None else (count,)
    require_shape(network, "metric_sums", sums, shape, samples=len(labels))
    return sums


def metrics(network: CustomMetrics, sums: Tensor) -> dict[str, float]:
    """Return a network's own metrics by name, from sums, float64 [k]; those that are not defined are NaN or missing.

    Raises ModelError.
    """
    with calls(network, "metrics"):
        try:
            found = network.metrics(sums)
            values = {name: nan if value is None else float(value) for name, value in found.items()}
        except ZeroDivisionError:
            return {}
    names = [*values]
    if len(names) > _MAX_METRICS or not all(isinstance(each, str) and len(each) <= _MAX_NAME for each in names):
        shown = ", ".join(str(each)[:_MAX_NAME] for each in names[: _MAX_METRICS + 1])
        raise ModelError(
            f"metrics of the network {type(network).__name__} returns {len(names)} metrics: {shown}.",
            f"Return at most {_MAX_METRICS}, with names that are text of at most {_MAX_NAME} characters.",
        )
    return values


def set_training(network: nn.Module, *, on: bool) -> None:
    """Set the mode of a network. Raises ModelError."""
    with calls(network, "train"):
        network.train(on)


def state_of(network: nn.Module) -> dict[str, Tensor]:
    """Return the state_dict of a network. Raises ModelError."""
    with calls(network, "state_dict"):
        return network.state_dict()


def count_metric_sums(network: CustomMetrics, spec: ModelSpec) -> int:
    """Return the number of sums that the metrics of a network need. Raises ModelError."""
    zeros = torch.zeros(_PROBED_SAMPLES, *spec.output_shape)
    return len(metric_sums(network, zeros, zeros, _probed_weights(spec)))


def _probed_weights(spec: ModelSpec) -> Tensor | None:
    return torch.ones(_PROBED_SAMPLES) if spec.has_weights else None


def require_shape(
    network: object, method: str, values: object, shape: Sequence[int], samples: int | None = None
) -> None:
    """Raise ModelError unless a method of a network returned floating point numbers of this shape."""
    if not (isinstance(values, Tensor) and values.shape == torch.Size(shape) and values.is_floating_point()):
        found = f"{values.dtype} {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ModelError(
            f"{method} of the network {type(network).__name__} returns {found} for "
            f"{shape[0] if samples is None else samples} samples.",
            f"It has to return floating point numbers: a tensor {list(shape)}.",
        )


def calls(network: object, method: str) -> AbstractContextManager[None]:
    """Return a context in which an error of a network's `method` becomes a ModelError."""
    return user_code(
        f"{method} of the network {type(network).__name__} failed",
        "Correct it; the pod's log has the whole trace.",
        ModelError,
    )


@torch.enable_grad()
def _probe(network: nn.Module, spec: ModelSpec, dtype: torch.dtype, name: str, device: torch.device) -> None:
    """Raise ModelError if a network does not map features and embeddings to logits that can be trained."""
    shape = (_PROBED_SAMPLES, *spec.output_shape)
    if spec.targets and not isinstance(network, CustomLoss):
        raise ModelError(
            f"The network of {name} has no loss for {', '.join(spec.targets)}, which need not be 0 or 1.",
            "Give it sample_losses, or name them in spec.data.columns.labels.",
        )
    dense = torch.zeros(_PROBED_SAMPLES, spec.dense_width, device=device)
    embeddings, leaves = _probed(spec, dtype, device)
    set_training(network, on=False)  # A probe is not a sample: running statistics stay as they are.
    try:
        with torch.autocast(device.type, dtype, enabled=dtype is not torch.float32):
            logits = start(network, dense, spec.output_shape)(embeddings)
    except ModelError as error:
        computed = str(dtype).removeprefix("torch.")
        shapes = [f"[n, {', '.join(map(str, each))}]" for each in _embedding_shapes(spec)]
        described = shapes[0] if len(spec.dims) == 1 else f"a tuple of {len(shapes)}: {', '.join(shapes)}"
        if spec.features:
            described = f"features by name, {len(spec.features)} of them, as"
        raise ModelError(
            error.message,
            f"It takes [n, {spec.dense_width}] features, float32, and {described} embeddings, {computed},"
            f" and returns [n{''.join(f', {size}' for size in spec.output_shape)}] logits; correct it, or spec.model.",
        ) from error
    logits, labels = logits.float(), torch.zeros(shape, device=device)
    if isinstance(network, CustomMetrics):
        values = logits.detach().cpu(), torch.ones(shape), _probed_weights(spec)
        sums = metric_sums(network, *values, count=count_metric_sums(network, spec))
        metrics(network, sums.double())
    found = gradients(network, loss_share(network, logits, labels, 1), leaves)
    set_training(network, on=True)
    if all(gradient is None for gradient in found):
        raise ModelError(f"The network of {name} does not use its embeddings.", "Without them, no table can learn.")
    if any(parameter.dtype is not torch.float32 for parameter in network.parameters()):
        raise ModelError(
            f"The network of {name} has parameters that are not float32.",
            "Leave them float32; spec.trainers.precision is the type of the computation.",
        )
    if any(not isinstance(value, Tensor) for value in state_of(network).values()):
        raise ModelError(
            f"The state of the network of {name} is not of tensors alone.",
            "Store the result of get_extra_state in buffers.",
        )


def _probed(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> tuple[Any, list[Tensor]]:
    """Return embeddings for a network, all zeros, and their leaves."""

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=dtype, device=device).requires_grad_()

    if not spec.features:
        leaves = [zeros(_PROBED_SAMPLES, *shape) for shape in _embedding_shapes(spec)]
        return (leaves[0] if len(spec.dims) == 1 else tuple(leaves)), leaves
    layout = FeatureLayout.of(spec)
    pooled = [zeros(_PROBED_SAMPLES, len(mine), dim) for mine, dim in zip(layout.pooled, spec.band_dims, strict=True)]
    lengths = torch.arange(_PROBED_SAMPLES, device=device)  # an empty sequence, too
    total = int(lengths.sum())
    sequences = [
        [
            Jagged(
                zeros(total, dim), lengths, torch.ones(total, device=device) if spec.features[place].weights else None
            )
            for place in mine
        ]
        for mine, dim in zip(layout.sequences, spec.band_dims, strict=True)
    ]
    features = Features(layout, pooled, sequences)
    return features, [*features.tensors]


def _embedding_shapes(spec: ModelSpec) -> list[tuple[int, ...]]:
    """Return the shapes of a sample's embeddings: one block, or a vector for each table if dims differ."""
    if len(spec.dims) == 1:
        return [(len(spec.tables), *spec.dims)]
    return [(dim,) for dim in spec.table_dims]
