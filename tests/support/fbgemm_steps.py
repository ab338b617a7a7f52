"""Steps of one of FBGEMM's fused optimizers, for another Python than the tests': fbgemm_steps.py IN.npz OUT.npz.

IN: kind, learning_rate, epsilon; rows float32 [n, D], ids int64 [steps, k], repeats allowed, gradients float32
[steps, k, D]. OUT: rows.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

KINDS = {
    "SGD": EmbOptimType.EXACT_SGD,
    "RowWiseAdagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "Adagrad": EmbOptimType.EXACT_ADAGRAD,
}


def main(source: str, target: str) -> None:
    """Take all steps."""
    given = np.load(source)
    rows, dim = given["rows"].shape
    table = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=KINDS[str(given["kind"])],
        learning_rate=float(given["learning_rate"]),
        eps=float(given["epsilon"]),
    )
    (weights,) = table.split_embedding_weights()
    weights.copy_(torch.from_numpy(given["rows"]))
    for ids, gradients in zip(given["ids"], given["gradients"], strict=True):
        table(torch.from_numpy(ids), torch.arange(len(ids) + 1)).backward(torch.from_numpy(gradients))
    np.savez(target, rows=weights.numpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
