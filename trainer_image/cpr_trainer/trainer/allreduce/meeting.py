"""What trainers decide when they meet: whose dense state all go on from, and what a member has to compute again.

Pure functions of the members' hellos; `members` does the talking.
"""

from __future__ import annotations

from dataclasses import dataclass

#: `Hello.done` of a trainer that has no dense state.
NO_STATE = -1


@dataclass(frozen=True, slots=True)
class Hello:
    """How a trainer introduces itself. `done` is the last step whose all-reduce it completed, NO_STATE without one."""

    rank: int
    incarnation: int
    group: int
    generation: int
    done: int


@dataclass(frozen=True, slots=True)
class Form:
    """The leader's call to build the process group. `survivors` is False if nobody brought a dense state."""

    done: int
    survivors: bool


@dataclass(frozen=True, slots=True)
class StateAgreement:
    """The outcome: all go on from the state of rank `source` after step `done`; `copy_to` receive it.

    `source` is None if nobody has a state: the leader then loads one, and everybody receives it.
    """

    source: int | None
    done: int
    copy_to: tuple[int, ...]
    reason: str


def agree_on_state(hellos: tuple[Hello, ...], leader: int) -> StateAgreement:
    """Choose the most advanced state; among equals the leader's, then that of the lowest rank.

    Members that completed the same all-reduces hold the same state and receive nothing.
    """
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

    A survivor (`pushed`: the last step it pushed) pushes what it did not; the exchange re-sends what was not
    acknowledged. A newcomer (`pushed` None) goes by what the shards applied of its rank. Its predecessor had at most
    `window` pushes unacknowledged and one in hand: what is missing before those was acknowledged once and died with
    its shard, which charges it as lost.
    """
    if pushed is not None:
        return range(pushed + 1, done + 1)
    return range(max(min(applied) + 1, done - window, 1), done + 1)
