"""One Gloo process group of one meeting: built, used, and thrown away when a member is lost.

A peer that dies ends a Gloo call at once, one that is frozen only after the time-out, and nothing else does. So a wait
here goes on in slices, may be left, and the group is then parked: its destructor would wait for the call.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from cpr_trainer.trainer.allreduce.auth import PAIR_BYTES, PairProofs
from cpr_trainer.trainer.allreduce.rendezvous import AddressStore, ExchangeAddresses
from cpr_trainer.trainer.interrupts import POLL_INTERVAL_S, GroupBroken, PollInterrupts

#: torch's own stubs leave out the classes below the default group.
_torch: Any = distributed
#: After this long in one call a peer counts as lost. All members were ready when the call began.
TIMEOUT = timedelta(seconds=5)
#: Groups with a call under way when they were left; kept so that no destructor blocks the loop.
_parked: list[Collective] = []


class Collective:
    """Sums over the trainers of one meeting; `prove` comes first. `exchange_addresses` tells the members' addresses.

    Raises GroupBroken if not all of them come within the time-out, and what `exchange_addresses` raises.
    """

    def __init__(self, exchange_addresses: ExchangeAddresses, rank: int, trainers: int, address: str) -> None:
        gloo = _torch.ProcessGroupGloo
        options = gloo._Options()  # noqa: SLF001 -- torch has no public name for the options of a group of one's own
        options._devices = [gloo.create_device(hostname=address)]  # noqa: SLF001
        options._timeout = TIMEOUT  # noqa: SLF001
        try:
            self._store = AddressStore(exchange_addresses)  # Gloo keeps it for as long as the group lives.
            self._group = gloo(self._store, rank, trainers, options)
        except RuntimeError as error:
            raise GroupBroken(f"the group could not be built: {error}") from error
        self._trainers = trainers
        self._works: tuple[Any, ...] = ()

    def prove(self, pairs: PairProofs, poll_interrupts: PollInterrupts) -> None:
        """Prove the job's key to every other trainer over the very connections that will carry the sums.

        Raises GroupBroken if somebody does not prove it, and what `poll_interrupts` raises: nothing may be summed then.
        """
        asked = [secrets.token_bytes(PAIR_BYTES) for _ in range(self._trainers)]
        told = self._trade_with_each(asked, poll_interrupts)
        proofs = self._trade_with_each(pairs.proofs(told, asked), poll_interrupts)
        if failed := pairs.unauthenticated_ranks(proofs, asked, told):
            raise GroupBroken(
                f"in the dense group the place of trainer {failed[0]} is taken by somebody without the key"
            )

    def _trade_with_each(self, words: list[bytes], poll_interrupts: PollInterrupts) -> list[bytes]:
        """Send each trainer its word, and return each one's. A pair's words go over the connection of that pair."""
        sent = torch.frombuffer(bytearray(b"".join(words)), dtype=torch.uint8)
        heard = torch.empty_like(sent)
        try:
            self._works = (self._group.alltoall_base(heard, sent, [], []),)
            _wait(self._works[0], poll_interrupts)
        except RuntimeError as error:
            raise GroupBroken(f"the members' proofs failed: {error}") from error
        self._works = ()
        return [bytes(word) for word in heard.view(self._trainers, PAIR_BYTES).numpy()]

    def sum(self, tensors: Sequence[Tensor], poll_interrupts: PollInterrupts) -> None:
        """Sum each tensor over all trainers, in place; all get the same bits. Gloo sums on the CPU: others are copied.

        Raises GroupBroken if a trainer is lost, and what `poll_interrupts` raises; the tensors are then undefined.
        """
        try:
            here = tuple(tensor.cpu() for tensor in tensors)  # one that is there already is itself
            self._works = tuple(self._group.allreduce([tensor]) for tensor in here)
            for work in self._works:
                _wait(work, poll_interrupts)
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


def _wait(work: Any, poll_interrupts: PollInterrupts) -> None:
    complete = threading.Event()
    work.get_future().add_done_callback(lambda _: complete.set())
    while not complete.wait(POLL_INTERVAL_S):
        poll_interrupts()
    work.wait()  # Raises what went wrong.
