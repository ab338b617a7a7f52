"""The present speed of this machine: a fixed matrix product, timed for each line of input."""

from __future__ import annotations

from time import perf_counter
from typing import TextIO

import torch

_SIZE = 1024
_REPEATS = 12


def run(source: TextIO, sink: TextIO) -> None:
    """Write GFLOP/s of float32, the best of several products, as a line to `sink` for each line of `source`."""
    left, right = torch.ones(_SIZE, _SIZE), torch.ones(_SIZE, _SIZE)
    for _ in source:
        print(f"{max(_flops(left, right) for _ in range(_REPEATS)) / 1e9:.1f}", file=sink, flush=True)


def _flops(left: torch.Tensor, right: torch.Tensor) -> float:
    start = perf_counter()
    torch.mm(left, right)
    return 2 * _SIZE**3 / (perf_counter() - start)
