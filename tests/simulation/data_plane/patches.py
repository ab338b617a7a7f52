"""Replaces socket, selectors, threading, clock and random numbers in the product's modules during a run.

The product takes all of them from the standard library, by names in its modules, so it needs no seam for tests.
"""

from __future__ import annotations

import concurrent.futures
import errno
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
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from cpr_trainer.store.transfers import in_parallel
from simulation.data_plane.clock import Process, Scheduler, Task
from simulation.data_plane.network import Address, Bell, Network, Socket, Watched
from simulation.data_plane.signals import Kernel
from simulation.data_plane.threads import Pool, threads


class Selector:
    """A `selectors.DefaultSelector` for simulated sockets."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._keys: dict[Watched, selectors.SelectorKey] = {}
        self._waiting: Task | None = None

    def register(self, watched: Watched, events: int, data: Any = None) -> None:
        assert watched not in self._keys
        self._keys[watched] = selectors.SelectorKey(watched, 0, events, data)  # type: ignore[arg-type]
        watched.selectors.append(self)

    def modify(self, watched: Watched, events: int, data: Any = None) -> None:
        self._keys[watched] = selectors.SelectorKey(watched, 0, events, data)  # type: ignore[arg-type]

    def unregister(self, watched: Watched) -> None:
        del self._keys[watched]
        watched.selectors.remove(self)

    def get_key(self, watched: Watched) -> selectors.SelectorKey:
        return self._keys[watched]

    def select(self, timeout_s: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        scheduler = self._network.scheduler
        if any(self._ready()):
            scheduler.yield_now()
        else:
            self._waiting = scheduler.current
            scheduler.park(timeout_s)
            self._waiting = None
        found = list(self._ready())
        self._network.rng.shuffle(found)
        return found

    def wake(self) -> None:
        if self._waiting is not None:
            self._network.scheduler.wake(self._waiting)

    def close(self) -> None:
        for watched in tuple(self._keys):
            self.unregister(watched)

    def _ready(self) -> Iterator[tuple[selectors.SelectorKey, int]]:
        for watched, key in self._keys.items():
            mask = selectors.EVENT_READ if key.events & selectors.EVENT_READ and watched.readable() else 0
            mask |= selectors.EVENT_WRITE if key.events & selectors.EVENT_WRITE and watched.writable() else 0
            if mask:
                yield key, mask


class Sockets:
    """The module `socket` for simulated processes; names that are not here are the real ones."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)

    def socket(self, *_kind: object) -> Socket:
        return Socket(self._network, self._process)

    def socketpair(self) -> tuple[Socket, Socket]:
        one, other = (Bell(self._network, self._process) for _ in range(2))
        one.peer, other.peer, one.state, other.state = other, one, "open", "open"
        return one, other

    def create_connection(self, address: Address, timeout_s: float) -> Socket:
        made = self.socket()
        made.settimeout(timeout_s)
        made.connect_ex(address)
        try:
            while made.state == "connecting":
                made.wait(timeout_s)
        except BaseException:
            made.close()
            raise
        if made.state == "failed":
            made.close()
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        return made

    @property
    def _process(self) -> Process:
        return self._network.scheduler.task.process


Item = TypeVar("Item")
Result = TypeVar("Result")


class Overlay:
    """A module, but for some names."""

    def __init__(self, real: Any, names: Any) -> None:
        self._real = real
        self._names = names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._names, name, None)
        setattr(self, name, getattr(self._real, name) if found is None else found)  # the next access finds it at once
        return vars(self)[name]


def one_by_one(work: Callable[[Item], Result], items: Iterable[Item], **_options: object) -> tuple[Result, ...]:
    """`in_parallel`, by one task."""
    return tuple(map(work, items))


@contextmanager
def patched(scheduler: Scheduler, network: Network, kernel: Kernel, rng: random.Random) -> Iterator[None]:
    """Patch all modules of the trainer image."""
    names = threads(scheduler)

    def seeded(seed: int | None = None) -> random.Random:
        return random.Random(rng.getrandbits(64) if seed is None else seed)

    replaced: dict[object, object] = {
        os: Overlay(os, kernel),
        random: Overlay(random, SimpleNamespace(Random=seeded)),
        selectors: Overlay(selectors, SimpleNamespace(DefaultSelector=partial(Selector, network))),
        signal: Overlay(signal, kernel),
        socket: Overlay(socket, Sockets(network)),
        threading: Overlay(threading, names),
        threading.Lock: names.Lock,
        time.monotonic: scheduler.clock,
        concurrent.futures.ThreadPoolExecutor: Pool,
        in_parallel: one_by_one,
    }
    known = {id(real): other for real, other in replaced.items()}
    with pytest.MonkeyPatch.context() as patch:
        for module in [module for name, module in sys.modules.items() if name.startswith("cpr_trainer.")]:
            for name, value in list(vars(module).items()):
                if (other := known.get(id(value))) is not None:
                    patch.setattr(module, name, other)
        yield
