"""A trainer's group: the methods of each, which are those of a single trainer, and the agreement on a dense state.

The agreement consists of pure functions of the members' hellos. `group_leader` and `group_follower` exchange them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import sleep
from typing import Protocol

from torch import Tensor

from cpr_contract.roster import TrainerRoster
from cpr_trainer.trainer.control import POLL_INTERVAL_S, PollInterrupts

#: `done` of a trainer that has no dense state.
NO_STATE = -1

#: Loads a first state into the replica where no member has one; called on the leader only.
Provide = Callable[[], None]


class Replica(Protocol):
    """The dense state that members copy. `done` is the last step that it contains, or NO_STATE."""

    done: int

    def pack(self) -> bytes:
        """Return the state as bytes."""

    def unpack(self, data: bytes | bytearray, done: int) -> None:
        """Replace the state by one that `pack` returned after step `done`."""


@dataclass(frozen=True, slots=True)
class Go:
    """All trainers are ready. `step` is the largest that any of them announced, `cut_step` the next cut (0: none)."""

    step: int
    cut_step: int


class Group:
    """Trainers of one (group, generation). This class itself is the group of a job's only trainer.

    `pin` is the number that the leader named last since the group formed, 0 before.

    All methods but `missing` and `unresponsive` are for the main thread. They wait in intervals and raise what
    `poll_interrupts` raises, and GroupBroken when a member is lost: call `join` again then. Without lockstep
    (`trainer.async_sync`) they do not wait for other trainers.
    """

    def __init__(self) -> None:
        self._step = 0
        self.pin = 0

    def join(self, replica: Replica, provide: Provide, poll_interrupts: PollInterrupts) -> bool:
        """Wait for all members; afterwards all hold the same state. Retries until it succeeds.

        Returns whether a member had a state already; else the leader's `provide` has loaded it.
        """
        poll_interrupts()
        if replica.done != NO_STATE:
            return True
        provide()
        return False

    def follow(self, roster: TrainerRoster) -> None:
        """Take the leader's address from a newer roster of this group: the first may lack it."""

    def announce(self, step: int) -> None:
        """Announce that this trainer is ready for `step`; return at once."""
        self._step = step

    def go(self, cut_step: int, poll_interrupts: PollInterrupts) -> Go:  # noqa: ARG002 -- there is no other
        """Wait until all have announced. Everyone receives the leader's `cut_step`; a follower's is ignored."""
        return Go(self._step, cut_step)

    def sum(self, tensors: Sequence[Tensor], poll_interrupts: PollInterrupts) -> None:
        """Sum each tensor over all trainers, in place."""

    def listen(self, poll_interrupts: PollInterrupts) -> None:
        """Handle messages of the others for one interval. Raises Finished when the leader ends the job."""
        poll_interrupts()
        sleep(POLL_INTERVAL_S)

    def name_pin(self, number: int) -> None:
        """On the leader: name the pin of the data up to which all read."""
        self.pin = number

    def check(self, poll_interrupts: PollInterrupts) -> None:
        """Handle the messages that have arrived, without waiting. Raises GroupBroken when a member is lost."""
        poll_interrupts()

    def conclude(self) -> bool:
        """On a leader at a barrier: return whether all trainers are there; its state is then that of all."""
        return True

    def dismiss(self) -> None:
        """On the leader: report to all that the job is done."""

    def missing(self) -> tuple[int, ...]:
        """Ranks that this trainer waits for."""
        return ()

    def unresponsive(self, for_s: float) -> tuple[int, ...]:  # noqa: ARG002 -- there is no other
        """Ranks that were seen once, but not in the last `for_s` seconds."""
        return ()

    def leave(self) -> None:
        """Stop using this group."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A trainer's first message. `done` is the last step that it completed, or NO_STATE."""

    rank: int
    incarnation: int
    group: int
    generation: int
    done: int


@dataclass(frozen=True, slots=True)
class Form:
    """The leader's request to build the process group. `survivors` is False if no member had a dense state."""

    done: int
    survivors: bool


@dataclass(frozen=True, slots=True)
class StateAgreement:
    """All continue from the state of rank `source` after step `done`; the ranks `copy_to` receive it.

    `source` is None if no member has a state: the leader then loads one, and all others receive it.
    """

    source: int | None
    done: int
    copy_to: tuple[int, ...]
    reason: str


def agree_on_state(hellos: tuple[Hello, ...], leader: int) -> StateAgreement:
    """Choose the most advanced state; among equals the leader's, then that of the lowest rank.

    Members that completed the same all-reduces hold the same state and receive nothing.
    """
    assert len({hello.rank for hello in hellos}) == len(hellos), "each rank takes part once"
    best = max(hellos, key=lambda hello: (hello.done, hello.rank == leader, -hello.rank))
    if best.done == NO_STATE:
        others = tuple(hello.rank for hello in hellos if hello.rank != leader)
        return StateAgreement(None, NO_STATE, others, "no trainer survived")
    behind = tuple(hello.rank for hello in hellos if hello.done != best.done)
    return StateAgreement(
        best.rank, best.done, behind, f"trainer {best.rank} is the most advanced, at step {best.done}"
    )


def missing_steps(done: int, pushed: int | None, applied: tuple[int, ...], window: int) -> range:
    """Return the steps that a member computes again, so that every shard gets its pushes up to `done`.

    A survivor pushes the steps after `pushed`, the last step it pushed; the exchange sends unacknowledged pushes again.
    A new member (`pushed` is None) uses the steps that the shards applied of its rank. Its predecessor had at most
    `window` pushes unacknowledged and one in hand. Steps missing before those were acknowledged once and were lost with
    their shard, which charges them.
    """
    if pushed is not None:
        return range(pushed + 1, done + 1)
    return range(max(min(applied) + 1, done - window, 1), done + 1)
