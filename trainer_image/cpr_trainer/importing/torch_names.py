"""The layers of the built-in network by their names in other systems, and in their forms there.

TorchRec's `DLRM` and `DLRM_DCN` (torchrec.models.dlrm), and the `DLRM_Net` of Facebook's dlrm_s_pytorch.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from cpr_contract.manifests import SavedTensor
from cpr_contract.model import ModelSpec
from cpr_trainer.importing.tensors import StoredTensor

_LAYER = re.compile(r"(bottom|top)\.([0-9]+)\.(weight|bias)")
_CROSS = re.compile(r"cross\.layers\.([0-9]+)\.(.+)")
_CROSS_NAMES = {"down.weight": "V_kernels", "up.weight": "W_kernels", "up.bias": "bias"}
_FACEBOOK = {"bottom": "bot_l", "top": "top_l"}


def other_names(layer: str, model: ModelSpec) -> tuple[str, ...]:
    """Return the names of a layer of the built-in network in other systems, TorchRec's first."""
    if (cross := _CROSS.fullmatch(layer)) is not None:
        return (f"inter_arch.crossnet.{_CROSS_NAMES[cross[2]]}.{cross[1]}",)
    if (found := _LAYER.fullmatch(layer)) is None:
        return ()
    network, place, kind = found.groups()
    number = int(place) // 2  # a ReLU follows each layer
    torchrec = f"dense_arch.model._mlp.{number}._linear.{kind}"
    if network == "top":
        last = number == len(model.top_mlp) - 1
        torchrec = f"over_arch.model.{'1' if last else f'0._mlp.{number}._linear'}.{kind}"
    return torchrec, f"{_FACEBOOK[network]}.{place}.{kind}"


def as_layer(tensor: StoredTensor, layer: SavedTensor, model: ModelSpec) -> StoredTensor:
    """Return a tensor of another system in the form of a layer. Another shape stays, and does not fit.

    TorchRec's biases of cross layers are [n, 1]. It takes dot products in another order, along the rows of the upper
    triangle, and the first layer above them has its columns in that order.
    """
    if tensor.shape == (*layer.shape, 1):
        return _converted(tensor, layer.shape, lambda values: values.squeeze(-1))
    if layer.name == "top.0.weight" and "over_arch." in tensor.name and model.cross is None:
        columns = _columns(model)
        if tensor.shape == layer.shape and layer.shape[1] == len(columns):
            return _converted(tensor, layer.shape, lambda values: values[:, columns])
    return tensor


def _columns(model: ModelSpec) -> Tensor:
    """Return the column in TorchRec's layer of each column of the built-in one, int64 [n]."""
    vectors, dim = 1 + len(model.feature_tables), model.embedding_dim
    numbers = torch.zeros(vectors, vectors, dtype=torch.int64)
    above = torch.triu_indices(vectors, vectors, offset=1)
    numbers[above[0], above[1]] = torch.arange(above.shape[1])
    below = torch.tril_indices(vectors, vectors, offset=-1)
    return torch.cat((torch.arange(dim), dim + numbers[below[1], below[0]]))


def _converted(tensor: StoredTensor, shape: tuple[int, ...], convert: Callable[[Tensor], Tensor]) -> StoredTensor:
    return replace(tensor, shape=shape, read=lambda first, last: convert(tensor.read(first, last)))
