"""A network of one seed: sockets that carry bytes between hosts, late, in pieces, or not at all.

The bytes of a connection arrive in order. A path between two hosts may be clogged until some time, or for
good; a connection may be reset, or swallow what is sent without a sign. Only the part of `socket` that the data plane
uses is here.
"""

from __future__ import annotations

import errno
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Protocol

from simulation.data_plane.clock import Process, Scheduler, Task

Address = tuple[str, int]
Buffer = bytes | bytearray | memoryview


class Wakes(Protocol):
    """A selector that may wait for a socket."""

    def wake(self) -> None:
        """Look again."""


class Network:
    """Hosts and the paths between them. A socket may have `capacity` bytes on their way."""

    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self.scheduler = scheduler
        self.rng = rng
        self.listeners: dict[Address, Port] = {}
        self.open: dict[Socket, None] = {}
        self.capacity = rng.choice((600, 4_000, 64_000))
        self._latest_s = rng.choice((0.0005, 0.002, 0.01))
        self._splits = rng.random() < 0.3  # a send takes a part
        self._clogged: dict[tuple[str, str], float] = {}

    def clog(self, sender: str, receiver: str, until: float) -> None:
        """Let nothing from one host to another arrive before a time; "*" is any host."""
        pair = (sender, receiver)
        self._clogged[pair] = max(until, self._clogged.get(pair, 0.0))

    def cut_off(self, host: str, until: float = math.inf) -> None:
        """Let nothing arrive from or at a host before a time."""
        self.clog(host, "*", until)
        self.clog("*", host, until)

    def unclog_all(self) -> None:
        """From now on everything arrives, but for lost hosts."""
        self._clogged = {pair: until for pair, until in self._clogged.items() if until == math.inf}

    def reaches(self, sender: str, receiver: str) -> bool:
        """Return whether what is sent now arrives soon."""
        return self._free_at(sender, receiver) <= self.scheduler.now

    def arrival(self, sender: str, receiver: str) -> float:
        """When what is sent now arrives."""
        free = max(self.scheduler.now, self._free_at(sender, receiver))
        return free + self.rng.uniform(0.0001, self._latest_s)

    def portion(self, size: int) -> int:
        """Return the number of bytes that a send takes."""
        return self.rng.randint(1, size) if self._splits and self.rng.random() < 0.2 else size

    def connections(self) -> list[Socket]:
        """Sockets of connections that are open at both ends."""
        return [each for each in self.open if type(each) is Socket and each.state == "open"]

    def _free_at(self, sender: str, receiver: str) -> float:
        pairs = ((sender, receiver), (sender, "*"), ("*", receiver))
        return max(self._clogged.get(pair, 0.0) for pair in pairs)


class Watched:
    """The base of ports and sockets: selectors and tasks can wait for it."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.selectors: list[Wakes] = []
        self._waiting: list[Task] = []

    def readable(self) -> bool:
        raise NotImplementedError

    def writable(self) -> bool:
        return False

    def changed(self) -> None:
        """Wake all waiting tasks."""
        for each in self.selectors:
            each.wake()
        for task in self._waiting:
            self._network.scheduler.wake(task)

    def wait(self, timeout_s: float | None) -> None:
        """Let the running task wait for a change. Raises TimeoutError."""
        task = self._network.scheduler.task
        self._waiting.append(task)
        woken = self._network.scheduler.park(timeout_s)
        self._waiting.remove(task)
        if not woken:
            raise TimeoutError("timed out")


class Port(Watched):
    """A port on which processes of one host listen, by handles: a process that inherits it has one more."""

    def __init__(self, network: Network, address: Address) -> None:
        super().__init__(network)
        self.address = address
        self.handles = 0
        self.queue: deque[Socket] = deque()
        network.listeners[address] = self

    def handle(self) -> Listener:
        self.handles += 1
        return Listener(self._network, self)

    def drop(self) -> None:
        self.handles -= 1
        if not self.handles:
            self._network.listeners.pop(self.address, None)
            while self.queue:
                self.queue.popleft().close()


class Listener(Watched):
    """A listening socket."""

    def __init__(self, network: Network, port: Port) -> None:
        super().__init__(network)
        self._port = port
        self._closed = False
        self.selectors = port.selectors

    def readable(self) -> bool:
        return bool(self._port.queue)

    def accept(self) -> tuple[Socket, Address]:
        if not self._port.queue:
            raise BlockingIOError
        accepted = self._port.queue.popleft()
        accepted.process = self._network.scheduler.task.process
        return accepted, ("", 0)

    def settimeout(self, timeout_s: float) -> None:
        pass

    def fileno(self) -> int:
        return -1 if self._closed else 1

    def getsockname(self) -> Address:
        return self._port.address

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._port.drop()


class Socket(Watched):
    """One end of a connection. `data` is what has arrived; `error` is what ended it; `peer` the other end."""

    def __init__(self, network: Network, process: Process | None) -> None:
        super().__init__(network)
        self.process = process
        self.host = "" if process is None else process.host
        self.state = "new"
        self.peer: Socket | None = None
        self.data = bytearray()
        self.ended = False  # the other end sends nothing any more
        self.error = 0
        self.mute = False  # what it sends is lost
        self._under_way = 0
        self._last = 0.0
        self._timeout_s: float | None = None
        network.open[self] = None

    def readable(self) -> bool:
        return self.state not in {"closed", "failed"} and (bool(self.data) or self.ended or bool(self.error))

    def writable(self) -> bool:
        return self.state == "failed" or (self.state == "open" and (bool(self.error) or self._capacity() > 0))

    def settimeout(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    def setsockopt(self, *_option: object) -> None:
        pass

    def getsockopt(self, *_option: object) -> int:
        return self.error

    def connect_ex(self, address: Address) -> int:
        self.state = "connecting"
        self._at_arrival(address[0], lambda: self._call(address))
        return errno.EINPROGRESS

    def recv_into(self, view: memoryview) -> int:
        while True:
            if self.state == "closed":
                raise OSError(errno.EBADF, "closed")
            if self.error:
                raise ConnectionResetError(self.error, "reset")
            if self.data:
                size = min(len(view), len(self.data))
                view[:size] = self.data[:size]
                del self.data[:size]
                if self.peer is not None:
                    self.peer.changed()
                return size
            if self.ended:
                return 0
            self._block()

    def recv(self, size: int) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(memoryview(buffer))])

    def sendmsg(self, buffers: list[Buffer]) -> int:
        while True:
            if self.state != "open" or self.error:
                raise BrokenPipeError(errno.EPIPE, "broken")
            if (capacity := self._capacity()) > 0:
                break
            self._block()
        data = b"".join(bytes(memoryview(each).cast("B")) for each in buffers)[:capacity]
        data = data[: self._network.portion(len(data))]
        self._under_way += len(data)
        self._at_arrival(self._there.host, lambda: self._there.arrive(data))
        return len(data)

    def send(self, data: bytes) -> int:
        return self.sendmsg([data])

    def shutdown(self, _how: int) -> None:
        if self.state == "open":
            self.state, self.ended = "shut", True
            self._at_arrival(self._there.host, self._there.end)
            self.changed()

    def close(self) -> None:
        before, self.state = self.state, "closed"
        self._network.open.pop(self, None)
        if before == "open":
            ending = self._there.reset if self.data else self._there.end
            self._at_arrival(self._there.host, ending)

    def arrive(self, data: bytes) -> None:
        """Some bytes are here."""
        self._there._under_way -= len(data)
        if self.state == "closed":
            self._at_arrival(self._there.host, self._there.reset)
            return
        self.data += data
        self.changed()

    def end(self) -> None:
        """The other end is closed."""
        self.ended = True
        self.changed()

    def reset(self) -> None:
        """The connection is broken."""
        if self.state in {"open", "connecting"}:
            self.error = errno.ECONNRESET
            self.data.clear()
            self.changed()

    def establish(self, peer: Socket) -> None:
        """The other end has answered."""
        if self.state == "connecting":
            self.peer, self.state = peer, "open"
            self.changed()
        else:
            peer.reset()

    @property
    def _there(self) -> Socket:
        assert self.peer is not None
        return self.peer

    def _capacity(self) -> int:
        waiting = len(self.peer.data) if self.peer is not None else 0
        return self._network.capacity - self._under_way - waiting

    def _call(self, address: Address) -> None:
        """The wish for a connection is there."""
        port = self._network.listeners.get(address)
        if port is None:
            self._refuse(address[0])
            return
        other = Socket(self._network, None)
        other.host, other.state, other.peer = address[0], "open", self
        port.queue.append(other)
        port.changed()
        other._at_arrival(self.host, lambda: self.establish(other))

    def _refuse(self, host: str) -> None:
        def refused() -> None:
            if self.state == "connecting":
                self.state, self.error = "failed", errno.ECONNREFUSED
                self.changed()

        self._network.scheduler.at(self._network.arrival(host, self.host), refused)

    def _at_arrival(self, host: str, action: Callable[[], None]) -> None:
        when = max(self._network.arrival(self.host, host), self._last)
        self._last = when
        if when < math.inf and not self.mute:
            self._network.scheduler.at(when, action)

    def _block(self) -> None:
        if self._timeout_s == 0.0:
            raise BlockingIOError
        self.wait(self._timeout_s)


class Bell(Socket):
    """One end of a pair in one process."""

    def sendmsg(self, buffers: list[Buffer]) -> int:
        self._there.arrive(b"".join(buffers))
        return 1

    def arrive(self, data: bytes) -> None:
        self.data[:] = data
        self.changed()


def close_all(network: Network, process: Process) -> None:
    """Close the sockets of a process that is dead, as its kernel does."""
    for each in [each for each in network.open if each.process is process]:
        each.close()
