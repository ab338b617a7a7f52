"""The ledger of lost samples: integer ranges per shard, and the check that one more loss fits the budget.

A sample-shard is one sample on one shard: a sample that lost its update on one shard is one of `total * shards`.
Portions are for display; every decision compares integers. Ranges are of sample numbers: those of data that arrives
include void ones, which count as lost like others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from itertools import accumulate

from cpr_contract.limits import MAX_RANGES as MOST_IN_STATUS
from cpr_operator.api.base import EXACT

#: A set of samples as sorted, disjoint, non-adjacent ranges [first, end).
Ranges = tuple[tuple[int, int], ...]

#: The maximum number of ranges of all shards for another charge; above it, a rollback has to clear some first.
MAX_RANGES = 2048

_EIGHT_DIGITS_UP = Context(prec=8, rounding=ROUND_CEILING)


@dataclass(frozen=True, slots=True)
class Ledger:
    """`total` samples of the job (0: not known yet), `limit` in sample-shards, lost ranges by shard.

    `carried` are sample-shards lost before the number of shards changed, rounded up, and those of sample numbers before
    `folded`. `running` is the paper's sum of the losses of all recoveries, in sample-shards. If the ledger is `open`,
    `total` grows, and sample numbers may be above it. At most `window_limit` sample-shards may be lost of any `window`
    consecutive sample numbers; 0: there is no such limit.
    """

    total: int
    limit: int
    lost: tuple[Ranges, ...]
    running: int = 0
    carried: int = 0
    folded: int = 0
    open: bool = False
    window: int = 0
    window_limit: int = 0

    def __post_init__(self) -> None:
        """Check that no amount is negative."""
        amounts = (self.total, self.running, self.carried)
        assert min(amounts) >= 0, f"negative amount in the ledger: {amounts}"

    @property
    def end(self) -> int:
        """The sample number after the last possible one."""
        return EXACT if self.open else self.total or EXACT

    @property
    def spent(self) -> int:
        """Sample-shards lost."""
        return self.carried + sum(length(ranges) for ranges in self.lost)

    @property
    def left(self) -> int:
        """Sample-shards that may still be lost; negative if more are lost than may be."""
        return self.limit - self.spent


@dataclass(frozen=True, slots=True)
class BudgetCheck:
    """The answer to a charge, with the reason."""

    fits: bool
    reason: str


def limit_of(portion: float, total: int, shards: int) -> int:
    """floor(portion * total * shards), of the decimal that the user wrote: 0.1 of 30 is 3."""
    return int(Fraction(repr(portion)) * total * shards)


def union(*sets: Iterable[tuple[int, int]]) -> Ranges:
    """The union of the sets as disjoint, sorted ranges. Empty ranges are ignored."""
    merged: list[tuple[int, int]] = []
    for first, end in sorted(one for ranges in sets for one in ranges):
        if first >= end:
            continue
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return tuple(merged)


def clip(ranges: Iterable[tuple[int, int]], end: int, *, start: int = 0) -> Ranges:
    """The intersection with [start, end)."""
    return union((max(first, start), min(last, end)) for first, last in ranges)


def length(ranges: Iterable[tuple[int, int]]) -> int:
    """The number of samples in the ranges, which may overlap."""
    return sum(end - first for first, end in union(ranges))


def add(ledger: Ledger, lost: Mapping[int, Iterable[tuple[int, int]]]) -> Ledger:
    """Return the ledger with these samples lost on each of these shards. Adding them again changes nothing."""
    return _charged(ledger, tuple(tuple(lost.get(index, ())) for index in range(len(ledger.lost))))


def add_everywhere(ledger: Ledger, ranges: Iterable[tuple[int, int]]) -> Ledger:
    """Return the ledger with these samples lost on every shard, because the dense network lost them."""
    shards = len(ledger.lost)
    return _charged(ledger, (_within(tuple(ranges), MOST_IN_STATUS // max(shards, 1)),) * shards)


def _charged(ledger: Ledger, reported: tuple[Ranges, ...]) -> Ledger:
    """Return the ledger with these ranges, by shard, added. Pods report them, so they are bounded here."""
    added = (
        union(old, clip(new, ledger.end, start=ledger.folded)) if new else old
        for old, new in zip(ledger.lost, bounded(reported), strict=True)
    )
    return replace(ledger, lost=bounded(tuple(added)))


def bounded(lost: tuple[Ranges, ...]) -> tuple[Ranges, ...]:
    """The sets, by shard. If a status cannot hold all ranges, a set with more than its share becomes one range.

    The range covers the whole set, so too much is charged rather than too little. No valid report comes near: the
    ledger is full before (MAX_RANGES).
    """
    if sum(map(len, lost)) <= MOST_IN_STATUS:
        return lost
    return tuple(_within(ranges, MOST_IN_STATUS // len(lost)) for ranges in lost)


def _within(ranges: Ranges, share: int) -> Ranges:
    """The ranges, or one that covers them if there are more than `share`."""
    if len(ranges) <= share:
        return ranges
    held = [each for each in ranges if each[0] < each[1]]
    return ((min(first for first, _ in held), max(end for _, end in held)),) if held else ()


def rolled_back(ledger: Ledger, samples: int) -> Ledger:
    """The ledger after a rollback to an anchor of `samples`. Later samples are trained again, so they are not lost."""
    return replace(ledger, lost=tuple(clip(old, samples) for old in ledger.lost))


def fold(ledger: Ledger, samples: int) -> Ledger:
    """The ledger with all losses before sample number `samples` as a number, so that ranges stay few.

    No rollback to an earlier anchor, and no loss in the same window as these, may follow.
    """
    if not any(ranges and ranges[0][0] < samples for ranges in ledger.lost):
        return ledger
    lost = tuple(clip(ranges, ledger.end, start=samples) for ranges in ledger.lost)
    carried = ledger.spent - sum(map(length, lost))
    return replace(ledger, lost=lost, carried=carried, folded=samples)


def most_in_window(lost: Sequence[Ranges], window: int) -> int:
    """The most sample-shards of these sets, by shard, that any `window` consecutive sample numbers have.

    The number is piecewise linear in the window's place. It is highest where a window begins with a range, or ends with
    one.
    """
    starts = sorted(first for ranges in lost for first, _ in ranges)
    ends = sorted(end for ranges in lost for _, end in ranges)
    start_sums, end_sums = ([*accumulate(each, initial=0)] for each in (starts, ends))

    def before(sample: int) -> int:
        begun, over = bisect_left(starts, sample), bisect_left(ends, sample)
        return begun * sample - start_sums[begun] - (over * sample - end_sums[over])

    places = (*starts, *(end - window for end in ends))
    return max((before(place + window) - before(place) for place in places), default=0)


def resharded(ledger: Ledger, shards: int, limit: int) -> Ledger:
    """The ledger after a change to `shards` shards, with the new `limit`. Earlier losses become a number.

    The losses cannot be assigned to the new shards. But a sample lost on one of S shards is 1 / S of a sample, which
    equals S' / S sample-shards of S' shards. The number is rounded up, and the limit down. If the number is then above
    the limit, the limit is raised to it, because the change itself loses nothing. A window has no earlier losses then.
    """

    def carried(sample_shards: int) -> int:
        return -(-sample_shards * shards // len(ledger.lost))

    spent = carried(ledger.spent)
    running = carried(ledger.running)
    after = replace(ledger, limit=max(limit, spent), lost=((),) * shards, running=running, carried=spent)
    assert after.left >= 0, "a change of the number of shards overspent the budget"
    return after


def recovered(ledger: Ledger, sample_shards: int) -> Ledger:
    """Add the loss of a recovery: PLS += (S_i - S_last) / (S_total * N) of CPR (Maeng et al., MLSys 2021, 4.1).

    The budget uses ranges instead: they count a sample that is lost twice once, and a rollback takes losses back.
    """
    return replace(ledger, running=ledger.running + sample_shards)


def portion(sample_shards: int, ledger: Ledger) -> float:
    """Sample-shards as a portion of all; 0 while the total is not known."""
    whole = ledger.total * len(ledger.lost)
    return sample_shards / whole if whole else 0.0


def shown(sample_shards: int, ledger: Ledger) -> float:
    """The portion for display, to eight digits and rounded up: as a limit, it allows that many sample-shards."""
    whole = ledger.total * len(ledger.lost)
    return float(_EIGHT_DIGITS_UP.divide(Decimal(sample_shards), Decimal(whole))) if whole else 0.0


def fits(ledger: Ledger, reserved: int, charges: int, in_window: int = 0) -> BudgetCheck:
    """Check that spent + reserved + charges sample-shards do not exceed the limit. A charge of 0 always fits.

    in_window: the most in any window, the reservations and charges included.
    """
    assert charges >= 0, f"negative charge: {charges}"
    assert reserved >= 0, f"negative reservation: {reserved}"
    if charges == 0:
        return BudgetCheck(fits=True, reason="nothing is lost")
    if sum(len(ranges) for ranges in ledger.lost) >= MAX_RANGES:
        return BudgetCheck(fits=False, reason=f"the ledger is full with {MAX_RANGES} ranges")
    left = ledger.left - reserved
    charge = f"at most {charges} sample-shards, with {left} of {ledger.limit} left"
    if ledger.window and in_window > ledger.window_limit:
        most = f"{in_window} sample-shards in {ledger.window} samples, of which {ledger.window_limit} may be lost"
        return BudgetCheck(fits=False, reason=f"the loss exceeds the budget of a window: at most {most}")
    if charges <= left:
        return BudgetCheck(fits=True, reason=f"the loss fits the budget: {charge}")
    return BudgetCheck(fits=False, reason=f"the loss exceeds the budget: {charge}")
