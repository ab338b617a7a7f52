"""Scores rows with a model that `cprjob export` wrote, and prints a logit a line: python serve.py MODEL ROWS.parquet.

It needs cprjob_serving, pyarrow, and what runs the network: nothing but numpy (format safetensors, the DLRM alone),
torch (torch-export), or onnxruntime (onnx).
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from cprjob_serving import Model, tensors


def network_of(model):
    """Return what maps the inputs of the model's network to logits."""
    if (model.folder / "network.onnx").exists():
        import onnxruntime

        session = onnxruntime.InferenceSession(model.folder / "network.onnx")
        return lambda inputs: session.run(None, inputs)[0]
    if (model.folder / "network.pt2").exists():
        import torch

        program = torch.export.load(model.folder / "network.pt2").module()
        return lambda inputs: program(*map(torch.from_numpy, inputs.values())).numpy()
    if model.about["model"]["entrypoint"]:
        sys.exit("This network has code of its own: export it with --format onnx or torch-export.")
    return dlrm(tensors(model.folder / "dense.safetensors"))


def dlrm(weights):
    """Return the DLRM of `model.bottomMlp` and `topMlp`, in double precision."""

    def mlp(name, values):
        layers = sorted(
            int(key.split(".")[1]) for key in weights if key.startswith(f"{name}.") and key.endswith("weight")
        )
        for layer in layers:
            values = np.maximum(values, 0) if layer else values
            values = values @ weights[f"{name}.{layer}.weight"].T.astype(float) + weights[f"{name}.{layer}.bias"]
        return values

    def cross(first):  # the layers of DCN V2
        crossed, layer = first, 0
        while f"cross.layers.{layer}.up.bias" in weights:
            down, up = (weights[f"cross.layers.{layer}.{name}.weight"].T.astype(float) for name in ("down", "up"))
            crossed = first * (crossed @ down @ up + weights[f"cross.layers.{layer}.up.bias"]) + crossed
            layer += 1
        return crossed

    def network(inputs):
        dense, *vectors = inputs.values()
        summary = np.maximum(mlp("bottom", dense.astype(float)), 0)
        for place, each in enumerate(vectors):  # those of another dim are projected
            matrix = weights.get(f"projections.{place}.weight")
            vectors[place] = each if matrix is None else each @ matrix.T.astype(float)
        stacked = np.stack([summary, *vectors], axis=1)
        if "cross.layers.0.down.weight" in weights:
            return mlp("top", cross(stacked.reshape(len(stacked), -1)))[:, 0]
        below = np.tril_indices(stacked.shape[1], -1)
        dots = (stacked @ stacked.transpose(0, 2, 1))[:, *below]
        return mlp("top", np.concatenate([summary, dots], axis=1))[:, 0]

    return network


if __name__ == "__main__":
    model = Model.open(Path(sys.argv[1]))
    rows = pq.read_table(sys.argv[2])
    columns = {name: rows.column(name).to_pylist() for name in rows.column_names}
    np.savetxt(sys.stdout, network_of(model)(model.inputs(columns)), "%.9g")
