"""One decision over all members that are lost or wait for leave to restore (docs/recovery.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from cpr_operator import ledger
from cpr_operator.api.status import Anchor
from cpr_operator.ledger import BudgetCheck, Ranges
from cpr_operator.recovery.account import Account

#: The pause between two attempts of a member that ended because the store is unavailable. It doubles up to the last.
FIRST_PAUSE_S, LAST_PAUSE_S = 5.0, 60.0


@dataclass(frozen=True, slots=True)
class Loss:
    """A shard that waits for leave to restore a save of at least `saved` samples.

    flushed: the save is a flush, so nothing is lost, and it is the floor.
    certain: there is no newer save.
    replayed_after: trainers push again the samples after this one; None: no samples.
    """

    index: int
    saved: int
    flushed: bool = False
    certain: bool = True
    replayed_after: int | None = None


@dataclass(frozen=True, slots=True)
class RecoveryInput:
    """All inputs of the decision.

    `survivors` are active trainers that hold the dense state. `trainer_bound` is the number of samples that any shard
    can have applied, from trainers' reports. `shard_bound` is the same from shards' reports, for when no trainer
    survived. Both are None until a report is there. `bound_exact`: no push was under way at these reports.
    `shard_state`: the state of some shard is left, in a process or as a flush. Without `dense_charged` trainers repeat
    what the dense state misses. `anchors` can be restored, oldest first. With `degrade` training continues without lost
    shards as far as the budget allows. `unreported` trainers may replay losses and have not reported how much.
    `orphaned` shards, with the samples of the saves that they continue from, wait for a replay of a lost trainer.
    """

    mode: Literal["Partial", "Full"]
    account: Account
    losses: tuple[Loss, ...]
    lost_trainers: tuple[int, ...]
    survivors: tuple[int, ...]
    leader: int
    trainer_bound: int | None
    shard_bound: int | None
    bound_exact: bool
    shard_state: bool
    dense_saved: int
    dense_certain: bool = True
    dense_charged: bool = True
    anchors: tuple[Anchor, ...] = ()
    degrade: bool = False
    unreported: tuple[int, ...] = ()
    orphaned: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ShardGrant:
    """Leave to restore a save not below `floor`, with `reserve` for the possible loss.

    Meanwhile training may continue up to sample `allowance`; 0: it waits. `flushed`: that save is a flush, and misses
    no acknowledged update.
    """

    index: int
    floor: int
    reserve: Ranges
    allowance: int = 0
    flushed: bool = False


@dataclass(frozen=True, slots=True)
class DenseGrant:
    """Leave for the leader to restore a dense save not below `floor`, with `reserve` on every shard.

    `pending_from` is the first sample that the restored state may miss, None if it misses none. It may miss more than
    `reserve`, because a push may have been under way when the shards reported.
    """

    floor: int
    reserve: Ranges
    pending_from: int | None = None


@dataclass(frozen=True, slots=True)
class Replace:
    """Partial recovery: new incarnations of `trainers`, and leave to restore for `shards`.

    lost: the shards without their state beyond their saves: together one failure.
    orphaned: reservations for shards that have leave already.
    """

    shards: tuple[ShardGrant, ...]
    trainers: tuple[int, ...]
    leader: int
    dense: DenseGrant | None
    lost: tuple[int, ...]
    reason: str
    orphaned: tuple[tuple[int, Ranges], ...] = ()

    @property
    def reserves(self) -> dict[int, Ranges]:
        """The reservations, by shard."""
        return {grant.index: grant.reserve for grant in self.shards} | dict(self.orphaned)


@dataclass(frozen=True, slots=True)
class RollBack:
    """All members go back to `anchor` (None: step 0) in a new generation; `lost` as for Replace."""

    anchor: Anchor | None
    lost: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class WaitForReport:
    """Wait for the reports of active members, which the decision needs."""

    reason: str


@dataclass(frozen=True, slots=True)
class WaitForStore:
    """Members ended because the store is unavailable: another attempt at once would end the same way."""

    reason: str


@dataclass(frozen=True, slots=True)
class FailJob:
    """Another attempt would end the same way, or there were too many. `cause` is one CamelCase word."""

    cause: str
    reason: str


Decision = Replace | RollBack | WaitForReport | WaitForStore | FailJob


def decide(given: RecoveryInput) -> Decision:
    """Decide on the lost members: partial recovery if it is allowed and fits the budget, else rollback."""
    s = given
    if not s.survivors and not s.shard_state:
        all_shards = tuple(range(len(s.account.reserved)))
        return roll_back(s.account, s.anchors, "no surviving process holds state of this job", all_shards)
    needs_bound = not s.survivors or bool(s.orphaned) or any(not loss.flushed for loss in s.losses)
    bound = s.trainer_bound if s.survivors else s.shard_bound
    if needs_bound and bound is None:
        reporter = "a trainer" if s.survivors else "the shards"
        return WaitForReport(f"waiting for {reporter} to report the training position")
    if s.unreported and any(not loss.flushed and loss.saved < (bound or 0) for loss in s.losses):
        names = ", ".join(f"trainer/{index}" for index in s.unreported)
        return WaitForReport(f"waiting for {names} to report what can be pushed again")
    return _fit(s, bound or 0)


def roll_back(account: Account, anchors: tuple[Anchor, ...], reason: str, lost: tuple[int, ...] = ()) -> RollBack:
    """Go back to the newest anchor at which the losses before it keep to the limit, or else to step 0."""

    def fits(samples: int) -> bool:
        return not account.roll_back(samples).is_overspent

    anchor = next((each for each in reversed(anchors) if fits(each.samples)), None)
    assert anchor is not None or fits(0), "a job without a trained sample exceeds its budget"
    return RollBack(anchor, lost, reason)


def extent(account: Account, shards: int, bound: int) -> tuple[int, str]:
    """Return the sample to which training, at most at `bound` now, may continue without `shards` shards, and why.

    0: training waits. `account` has already reserved their worst loss. Half of the remaining budget is for this
    recovery, divided among the shards: another one meanwhile has the other half. Rounded down to whole samples.
    """
    left = account.left(bound)
    more = left // 2 // shards if shards else 0
    until = min(bound + more, account.ledger.end)
    if until <= bound:
        return 0, f"training waits for them, because only {left} sample-shards are left"
    return until, f"training may continue without them for {until - bound} samples, up to sample {until}"


def next_attempt(started_at: float, lost_at: float | None) -> float:
    """Return the earliest time of the next attempt, in seconds since the epoch.

    `started_at` is the time of the decision on the last attempt, and `lost_at` the time of the loss that it should
    repair; None: the member has worked since. The pause grows with the duration of the attempts so far, so a process
    that ran for a while is replaced at once.
    """
    tried_for = 0.0 if lost_at is None else started_at - lost_at
    return started_at + min(max(tried_for, FIRST_PAUSE_S), LAST_PAUSE_S)


def _fit(s: RecoveryInput, bound: int) -> Decision:
    """Replace if the worst loss fits. If newer saves than the known ones may exist, require one that would fit."""
    dense = None if s.survivors else s.dense_saved
    known, check, charge = _try(s, bound, s.losses, dense)
    if check.fits and s.mode == "Full" and charge > 0:
        reason = "the plan is full recovery, so any lost sample rolls the job back"
        return roll_back(s.account, s.anchors, reason, known.lost)
    if check.fits:
        return _degraded(s, replace(known, reason=check.reason), bound)
    if s.mode == "Full":
        return roll_back(s.account, s.anchors, check.reason, known.lost)
    # The maximum loss of each member, by the remaining budget.
    lossy = len(s.account.reserved) if not s.survivors else sum(not loss.flushed for loss in s.losses)
    affordable = s.account.left(bound) // max(lossy, 1)
    oldest = max(bound - affordable, 0)
    losses = tuple(loss if loss.certain else replace(loss, saved=max(loss.saved, oldest)) for loss in s.losses)
    if dense is not None and not s.dense_certain:
        dense = max(dense, oldest)
    hoped, fitting, _ = _try(s, bound, losses, dense)
    if fitting.fits and oldest < bound:
        reason = f"{fitting.reason}, provided that saves of {oldest} samples exist"
        return _degraded(s, replace(hoped, reason=reason), bound)
    return roll_back(s.account, s.anchors, check.reason, known.lost)


def _try(
    s: RecoveryInput, bound: int, losses: tuple[Loss, ...], dense_saved: int | None
) -> tuple[Replace, BudgetCheck, int]:
    """Return the replacement that these saves permit, whether it fits, and the sample-shards that it would charge."""
    grants = tuple(_grant(loss, bound) for loss in losses)
    dense = None
    if dense_saved is not None:
        floor, reserve = min(dense_saved, bound), _between(dense_saved, bound) if s.dense_charged else ()
        dense = DenseGrant(floor, reserve, floor if s.dense_charged and (reserve or not s.bound_exact) else None)
    orphaned = tuple((index, _between(saved, bound)) for index, saved in s.orphaned)
    lost = tuple(loss.index for loss in losses if not loss.flushed)
    if dense and dense.reserve:
        lost = tuple(range(len(s.account.reserved)))
    # The present leader stays while it is active; without survivors it leads again in its next incarnation.
    leader = s.leader if s.leader in s.survivors or not s.survivors else min(s.survivors)
    tried = Replace(grants, s.lost_trainers, leader, dense, lost, "", orphaned)
    after, books = s.account.reserve(tried.reserves, dense.reserve if dense else ()), s.account.ledger
    charge = after.charged - s.account.charged
    assert charge >= 0, f"a reservation lowers the charge by {-charge} sample-shards"
    in_window = after.most_in_window(books.window)
    return tried, ledger.fits(books, s.account.set_aside, charge, in_window), charge


def _grant(loss: Loss, bound: int) -> ShardGrant:
    end = bound if loss.replayed_after is None else min(bound, loss.replayed_after)
    reserve = () if loss.flushed else _between(loss.saved, end)
    return ShardGrant(loss.index, loss.saved, reserve, flushed=loss.flushed)


def _between(first: int, end: int) -> Ranges:
    return ((first, end),) if first < end else ()


def _degraded(s: RecoveryInput, given: Replace, bound: int) -> Replace:
    """Let training continue without the lost shards, if the job degrades and the budget allows it."""
    # A new trainer begins with all shards, and a drained shard loses nothing: training waits for both.
    if not (s.degrade and s.mode == "Partial" and given.lost and s.survivors and not s.lost_trainers):
        return given
    shards = given.shards
    after = s.account.reserve({grant.index: grant.reserve for grant in shards})
    until, why = extent(after, len(given.lost), bound)
    if until:  # reserve the whole loss of a shard that training continues without
        shards = tuple(
            replace(grant, reserve=_between(grant.floor, until), allowance=until)
            if grant.index in given.lost
            else grant
            for grant in shards
        )
    return replace(given, shards=shards, reason=f"{given.reason}; {why}")
