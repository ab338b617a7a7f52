"""One Gloo process group of one meeting: built, used, and thrown away when a member is lost.

A peer that dies ends a Gloo call at once, one that is frozen only after the time-out, and nothing else does. So a wait
here goes on in slices, may be left, and the group is then parked: its destructor would wait for the call.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch import Tensor, distributed

from cpr_trainer.trainer.interrupts import SLICE_S, Attend, GroupBroken

#: torch's own stubs leave out the classes below the default group.
_torch: Any = distributed
#: After this long in one call a peer counts as lost. All members were ready when the call began.
TIMEOUT = timedelta(seconds=5)
#: Groups with a call under way when they were left; kept so that no destructor blocks the loop.
_parked: list[Collective] = []


class StoreServer:
    """The meeting point of a process group: a TCPStore that listens on `address` only."""

    def __init__(self, address: str) -> None:
        listener = socket.create_server((address, 0))
        self.port: int = listener.getsockname()[1]
        self.store = _open_store(address, self.port, is_master=True, master_listen_fd=listener.detach())


def connect_store(host: str, port: int) -> Any:
    """Return a client of the leader's store. Raises GroupBroken if it cannot be reached."""
    try:
        return _open_store(host, port, is_master=False)
    except (RuntimeError, ValueError) as error:
        raise GroupBroken(f"the group's store does not answer: {error}") from error


def _open_store(host: str, port: int, **options: Any) -> Any:
    # libuv's backend does not take over a listening socket.
    return _torch.TCPStore(host, port, timeout=TIMEOUT, wait_for_workers=False, use_libuv=False, **options)


class Collective:
    """Sums over the trainers of one meeting. Raises GroupBroken if not all of them come within the time-out."""

    def __init__(self, store: Any, rank: int, trainers: int, address: str) -> None:
        gloo = _torch.ProcessGroupGloo
        options = gloo._Options()  # noqa: SLF001 -- torch has no public name for the options of a group of one's own
        options._devices = [gloo.create_device(hostname=address)]  # noqa: SLF001
        options._timeout = TIMEOUT  # noqa: SLF001
        try:
            self._group = gloo(store, rank, trainers, options)
        except RuntimeError as error:
            raise GroupBroken(f"the group could not be built: {error}") from error
        self._store = store  # Gloo looks up peers in it for as long as the group lives.
        self._works: tuple[Any, ...] = ()

    def sum(self, tensors: Sequence[Tensor], attend: Attend) -> None:
        """Sum each tensor over all trainers, in place; all get the same bits. Gloo sums on the CPU: others are copied.

        Raises GroupBroken if a trainer is lost, and what `attend` raises; the tensors are then undefined.
        """
        try:
            here = tuple(tensor.cpu() for tensor in tensors)  # one that is there already is itself
            self._works = tuple(self._group.allreduce([tensor]) for tensor in here)
            for work in self._works:
                _wait(work, attend)
        except RuntimeError as error:
            raise GroupBroken(f"the all-reduce failed: {error}") from error
        self._works = ()
        for tensor, total in zip(tensors, here, strict=True):
            tensor.copy_(total)

    def leave(self) -> None:
        """Never use this group again."""
        _parked[:] = [parked for parked in _parked if parked.busy]
        if self.busy:
            _parked.append(self)

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return not all(work.is_completed() for work in self._works)


def _wait(work: Any, attend: Attend) -> None:
    complete = threading.Event()
    work.get_future().add_done_callback(lambda _: complete.set())
    while not complete.wait(SLICE_S):
        attend()
    work.wait()  # Raises what went wrong.
