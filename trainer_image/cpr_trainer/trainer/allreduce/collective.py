"""One Gloo process group: built when a group forms, discarded when a member is lost.

A call of Gloo ends at once when a peer dies, and only after the time-out when one hangs; nothing else ends it. Waits
here are therefore polled and may be abandoned. An abandoned group is parked, because its destructor would wait for the
call. Members exchange the addresses of Gloo over their authenticated control connections.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from cpr_contract.roster import TrainerRoster
from cpr_trainer.trainer.allreduce.auth import PAIR_BYTES, PairProofs
from cpr_trainer.trainer.allreduce.group import Group
from cpr_trainer.trainer.allreduce.listener import PeerListener, PeerLiveness
from cpr_trainer.trainer.allreduce.tunnel import Entry, ExchangeAddresses, loopback, through_tunnels
from cpr_trainer.trainer.control import POLL_INTERVAL_S, GroupBroken, PollInterrupts

#: torch's own stubs leave out the classes below the default group.
_torch: Any = distributed
#: A peer that takes longer for one call counts as lost. All members were ready when the call began.
TIMEOUT = timedelta(seconds=5)
#: Abandoned groups with a call under way; kept so that no destructor blocks the loop.
_parked: list[Collective] = []


class Collective:
    """Sums over the trainers of one process group. Call `prove` first.

    Raises GroupBroken if not all trainers connect within the time-out, and what `exchange_addresses` raises.
    """

    def __init__(self, exchange_addresses: ExchangeAddresses, rank: int, trainers: int, address: str) -> None:
        gloo = _torch.ProcessGroupGloo
        options = gloo._Options()  # noqa: SLF001 -- torch has no public name for the options of a separate group
        options._devices = [gloo.create_device(hostname=address)]  # noqa: SLF001
        options._timeout = TIMEOUT  # noqa: SLF001
        try:
            self._store = AddressStore(exchange_addresses)  # Gloo uses it until the end of the group.
            self._group = gloo(self._store, rank, trainers, options)
        except RuntimeError as error:
            raise GroupBroken(f"the group could not be built: {error}") from error
        self._trainers = trainers
        self._works: tuple[Any, ...] = ()

    def prove(self, pairs: PairProofs, poll_interrupts: PollInterrupts) -> None:
        """Prove the job's key to every other trainer over the very connections that will carry the sums.

        Raises GroupBroken if a trainer does not prove it, and what `poll_interrupts` raises: do not sum then.
        """
        sent = [secrets.token_bytes(PAIR_BYTES) for _ in range(self._trainers)]
        received = self._exchange_with_each(sent, poll_interrupts)
        proofs = self._exchange_with_each(pairs.proofs(received, sent), poll_interrupts)
        if failed := pairs.unauthenticated_ranks(proofs, sent, received):
            raise GroupBroken(
                f"the member at the place of trainer {failed[0]} in the dense group does not have the job's key"
            )

    def _exchange_with_each(self, messages: list[bytes], poll_interrupts: PollInterrupts) -> list[bytes]:
        """Send item r to rank r and return the item received from each, over the connection of that pair."""
        sent = torch.frombuffer(bytearray(b"".join(messages)), dtype=torch.uint8)
        received = torch.empty_like(sent)
        try:
            self._works = (self._group.alltoall_base(received, sent, [], []),)
            _wait(self._works[0], poll_interrupts)
        except RuntimeError as error:
            raise GroupBroken(f"the members' proofs failed: {error}") from error
        self._works = ()
        return [bytes(message) for message in received.view(self._trainers, PAIR_BYTES).numpy()]

    def sum(self, tensors: Sequence[Tensor], poll_interrupts: PollInterrupts) -> None:
        """Sum each tensor over all trainers, in place; all get the same bits. Tensors of devices are copied to the CPU.

        Raises GroupBroken if a trainer is lost, and what `poll_interrupts` raises; the tensors are then undefined.
        """
        try:
            on_cpu = tuple(tensor.cpu() for tensor in tensors)
            self._works = tuple(self._group.allreduce([tensor]) for tensor in on_cpu)
            for work in self._works:
                _wait(work, poll_interrupts)
        except RuntimeError as error:
            raise GroupBroken(f"the all-reduce failed: {error}") from error
        self._works = ()
        for tensor, total in zip(tensors, on_cpu, strict=True):
            tensor.copy_(total)

    def leave(self) -> None:
        """Stop using this group."""
        _parked[:] = [parked for parked in _parked if parked.busy]
        if self.busy:
            _parked.append(self)

    @property
    def busy(self) -> bool:
        """True while a call is under way."""
        return not all(work.is_completed() for work in self._works)


class ConnectedGroup(Group):
    """A group of several trainers, over their control connections. Without `sums` it only admits and joins members."""

    def __init__(self, listener: PeerListener, liveness: PeerLiveness, roster: TrainerRoster, *, sums: bool) -> None:
        super().__init__()
        self._listener = listener
        self._liveness = liveness
        self._roster = roster
        self._sums = sums
        self._waiting = False
        self._collective: Collective | None = None

    def sum(self, tensors: Sequence[Tensor], poll_interrupts: PollInterrupts) -> None:
        if self._collective is None:
            raise GroupBroken("no group was built")
        self._collective.sum(tensors, poll_interrupts)

    def listen(self, poll_interrupts: PollInterrupts) -> None:
        self._take(poll_interrupts)

    def check(self, poll_interrupts: PollInterrupts) -> None:
        self._take(poll_interrupts, 0.0)

    def _take(self, poll_interrupts: PollInterrupts, timeout_s: float = POLL_INTERVAL_S) -> object:
        """Handle one arrival."""
        raise NotImplementedError

    def _build(self, exchange_addresses: ExchangeAddresses, trainers: int, poll_interrupts: PollInterrupts) -> None:
        """Build the process group and prove the key in it, if the group sums. Raises as `Collective` does."""
        if self._sums:
            self._collective = self._connected(exchange_addresses, trainers)
            self._collective.prove(self._listener.pair_proofs(self._roster.counters), poll_interrupts)

    def _connected(self, exchange_addresses: ExchangeAddresses, trainers: int) -> Collective:
        """Return the process group, which has connected to all trainers."""
        rank = self._listener.rank
        if not self._listener.encrypted:
            return Collective(exchange_addresses, rank, trainers, self._listener.address)
        exchange = through_tunnels(self._listener, self._roster.trainers, exchange_addresses)
        return Collective(exchange, rank, trainers, loopback(rank))

    def _leave_collective(self) -> None:
        if self._collective:
            self._collective.leave()
            self._collective = None


class AddressStore(_torch.Store):  # type: ignore[misc]
    """The store of one process group. Each trainer sets one entry before it reads those of the others."""

    def __init__(self, exchange_addresses: ExchangeAddresses) -> None:
        super().__init__()
        self._exchange_addresses = exchange_addresses
        self._known: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        """Put in this trainer's entry, and wait for those of all."""
        entries = self._exchange_addresses(Entry(key, bytes(value).hex())).entries
        self._known = {entry.key: bytes.fromhex(entry.value) for entry in entries}

    def get(self, key: str) -> bytes:
        """Return an entry. Raises KeyError if there is none."""
        return self._known[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return at once: all entries come together. Raises KeyError if one is missing."""
        del timeout
        for key in keys:
            self.get(key)

    def check(self, keys: list[str]) -> bool:
        """Return whether all these entries are there."""
        return all(key in self._known for key in keys)

    def set_timeout(self, timeout: timedelta) -> None:
        """Ignore the time-out: `exchange_addresses` has its own."""

    def has_extended_api(self) -> bool:
        """Return whether there are further methods."""
        return False


def _wait(work: Any, poll_interrupts: PollInterrupts) -> None:
    complete = threading.Event()
    work.get_future().add_done_callback(lambda _: complete.set())
    while not complete.wait(POLL_INTERVAL_S):
        poll_interrupts()
    work.wait()  # Raises the call's error.
