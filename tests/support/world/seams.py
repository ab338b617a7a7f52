"""How the product comes into a world: what its modules know as socket, thread, clock and chance is the world's.

The product has no seam for it, and needs none: it takes all four from the standard library, by names in its modules.
While a world runs, these names mean the world's.
"""

from __future__ import annotations

import concurrent.futures
import os
import random
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from cpr_trainer.store.transfers import in_parallel
from support.world.modules import Selector, Sockets
from support.world.network import Network
from support.world.scheduler import Scheduler
from support.world.signals import Kernel
from support.world.threads import Pool, Threads

Item = TypeVar("Item")
Result = TypeVar("Result")


class Overlay:
    """A module, but for some names."""

    def __init__(self, real: Any, names: Any) -> None:
        self._real = real
        self._names = names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._names, name, None)
        return getattr(self._real, name) if found is None else found


class _Chance:
    """`random`, where nobody draws what the seed does not know."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def Random(self, seed: int | None = None) -> random.Random:  # noqa: N802 -- as in random
        return random.Random(self._rng.getrandbits(64) if seed is None else seed)


class _Selectors:
    def __init__(self, network: Network) -> None:
        self._network = network

    def DefaultSelector(self) -> Selector:  # noqa: N802 -- as in selectors
        return Selector(self._network)


def one_by_one(work: Callable[[Item], Result], items: Iterable[Item], **_options: object) -> tuple[Result, ...]:
    """`in_parallel`, by one task."""
    return tuple(map(work, items))


@contextmanager
def inside(scheduler: Scheduler, network: Network, kernel: Kernel, rng: random.Random) -> Iterator[None]:
    """Let all modules of the trainer image be in a world."""
    threads = Threads(scheduler)
    replaced: dict[object, object] = {
        os: Overlay(os, kernel),
        random: Overlay(random, _Chance(rng)),
        selectors: Overlay(selectors, _Selectors(network)),
        signal: Overlay(signal, kernel),
        socket: Overlay(socket, Sockets(network)),
        threading: Overlay(threading, threads),
        threading.Lock: threads.Lock,
        time.monotonic: scheduler.clock,
        concurrent.futures.ThreadPoolExecutor: Pool,
        in_parallel: one_by_one,
    }
    known = {id(real): other for real, other in replaced.items()}
    before: list[tuple[Any, str, object]] = []
    try:
        for module in [module for name, module in sys.modules.items() if name.startswith("cpr_trainer.")]:
            for name, value in list(vars(module).items()):
                if (other := known.get(id(value))) is not None:
                    before.append((module, name, value))
                    setattr(module, name, other)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
