"""The workers of a trainer: threads that compute parts of a slice side by side, on one copy of the dense network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

#: Of fewer samples a network has no statistics to normalise by, as BatchNorm does in training.
LEAST_SAMPLES = 2


class ComputeWorkers:
    """So many workers, each on its share of the processors. A lone one works in the caller's thread."""

    def __init__(self, workers: int = 1) -> None:
        self._workers = workers
        self._threads: ThreadPoolExecutor | None = None
        if workers > 1:
            share = max(1, torch.get_num_threads() // workers)
            self._threads = ThreadPoolExecutor(workers, "worker", torch.set_num_threads, (share,))

    def parts(self, samples: int) -> list[slice]:
        """Divide a slice of `samples`: a part for each worker, of about the same size, unless samples are few."""
        count = max(1, min(self._workers, samples // LEAST_SAMPLES))
        return [slice(part * samples // count, (part + 1) * samples // count) for part in range(count)]

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.shutdown()

    def each(self, do: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        """Return what `do` makes of each item, one for each worker at most. Raises what `do` raises."""
        if self._threads is None or len(items) == 1:
            return [do(item) for item in items]
        return list(self._threads.map(do, items))
