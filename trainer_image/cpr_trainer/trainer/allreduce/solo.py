"""A group of one: nothing to meet, nothing to sum."""

from __future__ import annotations

from collections.abc import Sequence
from time import sleep

from torch import Tensor

from cpr_contract.roster import TrainerRoster
from cpr_trainer.trainer.allreduce.group import Go, Provide, Replica
from cpr_trainer.trainer.allreduce.meeting import NO_STATE
from cpr_trainer.trainer.interrupts import POLL_INTERVAL_S, PollInterrupts


class Solo:
    """The `Group` of a job's only trainer."""

    def __init__(self) -> None:
        self._step = 0

    def join(self, replica: Replica, provide: Provide, poll_interrupts: PollInterrupts) -> bool:
        """See `Group`."""
        poll_interrupts()
        if replica.done != NO_STATE:
            return True
        provide()
        return False

    def follow(self, roster: TrainerRoster) -> None:
        """See `Group`."""

    def announce(self, step: int) -> None:
        """See `Group`."""
        self._step = step

    def go(self, cut_step: int, poll_interrupts: PollInterrupts) -> Go:
        """See `Group`."""
        del poll_interrupts
        return Go(self._step, cut_step)

    def sum(self, tensors: Sequence[Tensor], poll_interrupts: PollInterrupts) -> None:
        """See `Group`."""

    def listen(self, poll_interrupts: PollInterrupts) -> None:
        """See `Group`."""
        poll_interrupts()
        sleep(POLL_INTERVAL_S)

    def conclude(self) -> bool:
        """See `Group`."""
        return True

    def dismiss(self) -> None:
        """See `Group`."""

    def missing(self) -> tuple[int, ...]:
        """See `Group`."""
        return ()

    def unresponsive(self, for_s: float) -> tuple[int, ...]:  # noqa: ARG002 -- as all groups
        """See `Group`."""
        return ()

    def leave(self) -> None:
        """See `Group`."""
