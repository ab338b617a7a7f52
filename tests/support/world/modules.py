"""What the modules `socket` and `selectors` are to the processes of a world."""

from __future__ import annotations

import errno
import selectors
import socket
from collections.abc import Iterator
from typing import Any

from support.world.network import Address, Bell, Network, Socket, Watched
from support.world.scheduler import Process, Task


class Selector:
    """What `selectors.DefaultSelector` is, for sockets of a world."""

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
            scheduler.give_way()
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
    """What the module `socket` is to the processes of a world; all that is not here is as it was."""

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
        current = self._network.scheduler.current
        assert current is not None
        return current.process
