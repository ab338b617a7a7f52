"""`Group`: one trainer's view of the trainers it steps with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from cpr_contract.roster import TrainerRoster
from cpr_trainer.trainer.interrupts import PollInterrupts


class Replica(Protocol):
    """The dense state that meetings copy."""

    done: int  # the last step whose all-reduce is in this state, NO_STATE without one

    def pack(self) -> bytes:
        """Return the state as bytes."""
        ...

    def unpack(self, data: bytes | bytearray, done: int) -> None:
        """Replace the state by one that `pack` returned after step `done`."""
        ...


#: Loads a first state into the replica, where no member has one; only the leader is asked.
Provide = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Go:
    """All trainers are ready. `step` is the largest that any of them named, `cut_step` the announced cut (0: none)."""

    step: int
    cut_step: int


class Group(Protocol):
    """Trainers of one (group, generation).

    All methods but `missing` and `unresponsive` are for the main thread; they wait in slices and raise what
    `poll_interrupts` raises, and GroupBroken when a member is lost: `join` again then. Without lockstep (`async_sync`)
    they wait for nobody.
    """

    def join(self, replica: Replica, provide: Provide, poll_interrupts: PollInterrupts) -> bool:
        """Wait for all members; afterwards all hold the same state.

        Returns whether somebody brought one; else the leader's `provide` made it. Retries until it succeeds.
        """
        ...

    def follow(self, roster: TrainerRoster) -> None:
        """Take the leader's address from a newer roster of this group: the first may lack it."""
        ...

    def announce(self, step: int) -> None:
        """Say that this trainer will soon need the group for `step`; returns at once."""
        ...

    def go(self, cut_step: int, poll_interrupts: PollInterrupts) -> Go:
        """Wait until all have announced. The leader's `cut_step` is told to all, a follower's is ignored."""
        ...

    def sum(self, tensors: Sequence[Tensor], poll_interrupts: PollInterrupts) -> None:
        """Sum each tensor over all trainers, in place."""
        ...

    def listen(self, poll_interrupts: PollInterrupts) -> None:
        """Take in what the others say, for one slice of a wait. Raises Finished when the leader ends the job."""
        ...

    def conclude(self) -> bool:
        """Return, on a leader that has come to where all meet, whether all have; its state is then that of all."""
        ...

    def dismiss(self) -> None:
        """The leader's last word: the job is done."""
        ...

    def missing(self) -> tuple[int, ...]:
        """Ranks that this trainer waits for."""
        ...

    def unresponsive(self, for_s: float) -> tuple[int, ...]:
        """Ranks that were heard, and not for the last `for_s` seconds."""
        ...

    def leave(self) -> None:
        """Never use this group again."""
        ...
