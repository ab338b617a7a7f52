"""How fast this machine is right now: a fixed matrix product, timed whenever a line comes in."""

from __future__ import annotations

from time import perf_counter
from typing import TextIO

import torch

# How fast this machine is right now: a fixed matrix product, timed whenever a line comes in.


_SIZE = 1024
_REPEATS = 12


def run(source: TextIO, sink: TextIO) -> None:
    """Answer each line of `source` with GFLOP/s of float32, the best of some products, on a line of `sink`."""
    left, right = torch.ones(_SIZE, _SIZE), torch.ones(_SIZE, _SIZE)
    for _ in source:
        print(f"{max(_flops(left, right) for _ in range(_REPEATS)) / 1e9:.1f}", file=sink, flush=True)


def _flops(left: torch.Tensor, right: torch.Tensor) -> float:
    start = perf_counter()
    torch.mm(left, right)
    return 2 * _SIZE**3 / (perf_counter() - start)
