"""What a shard has lost: the steps of each rank that it never applied, as ranges of global samples and in row updates.

A rank sends one push per step, and with it how many rows it pushed before. Where its next push leaves steps out, they
were applied by an incarnation that died before it saved them: lost, on this shard alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

from cpr_contract.manifests import Ranges, RowUpdates
from cpr_contract.spec import samples_at
from cpr_trainer.data.order import BatchOrder

#: The most parts of batches that a restore adds to the account, which takes some thousands. Where training goes on
#: without a shard, each rank comes back to it at a step of its own.
MOST_SLIVERS = 64


@dataclass(frozen=True, slots=True)
class Gap:
    """Steps first..last of one rank, both lost."""

    rank: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Losses:
    """What is lost since the generation's anchor, and what is not known yet after a restore.

    `lost` is the account so far, sorted and merged. first_steps[r] is the first step of rank r applied since the
    restore, 0 while there was none; `gaps` wait until all ranks have pushed: before that, ranges would be one sliver
    per step and rank.
    """

    lost: Ranges
    first_steps: tuple[int, ...]
    gaps: tuple[Gap, ...] = ()

    @classmethod
    def restored(cls, lost: Ranges, trainers: int) -> Self:
        """Return the account right after a restore."""
        return cls(lost, (0,) * trainers)

    @property
    def resumed(self) -> bool:
        """Whether every rank has pushed since the restore, so that `lost` is complete."""
        return all(self.first_steps)

    def applied(self, rank: int, before: int, step: int, order: BatchOrder) -> Self:
        """Return the account after `step` of a rank was applied, whose last applied step was `before`."""
        if self.first_steps[rank] and step == before + 1:
            return self
        first = tuple(self.first_steps[r] or (step if r == rank else 0) for r in range(len(self.first_steps)))
        gaps = self.gaps if step == before + 1 else (*self.gaps, Gap(rank, before + 1, step - 1))
        known = replace(self, first_steps=first, gaps=gaps)
        return replace(known, lost=known.so_far(order), gaps=()) if known.resumed else known

    def so_far(self, order: BatchOrder) -> Ranges:
        """Return all ranges known by now, those of waiting gaps included: what a manifest carries."""
        return merge((*self.lost, *_ranges_of(self.gaps, order, len(self.first_steps))))

    def resumed_samples(self, order: BatchOrder) -> int | None:
        """Return the first sample that was served again after the restore; None until all ranks have pushed."""
        if not self.resumed:
            return None
        return samples_at(min(self.first_steps) - 1, order.batch_size, order.total_samples)


def after_push(account: RowUpdates, rank: int, before: int, rows: int) -> RowUpdates:
    """Return the account after a push of so many rows was applied; its rank has pushed `before` rows until then.

    Those that the account does not know of are lost.
    """
    lost = before - account.pushed[rank]
    pushed = tuple(before + rows if r == rank else count for r, count in enumerate(account.pushed))
    return replace(account, pushed=pushed, lost=account.lost + lost)


def order_of(total_samples: int, batch_size: int) -> BatchOrder:
    """Return the order as far as losses need it: which samples a step holds, not which rows they are."""
    return BatchOrder(rows=max(total_samples, 1), total_samples=total_samples, batch_size=batch_size, seed=0)


def merge(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the union of half-open ranges, sorted, with nothing empty and nothing touching."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(pair for pair in ranges if pair[0] < pair[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def _ranges_of(gaps: tuple[Gap, ...], order: BatchOrder, trainers: int) -> Iterator[tuple[int, int]]:
    """Yield the samples in the gaps. Steps that all ranks miss are whole batches: one range for a run of them.

    So are those that some ranks miss, if there are too many of them for an account: that errs on the safe side.
    """
    edges = sorted({edge for gap in gaps for edge in (gap.first, gap.last + 1)})
    runs = [(start, end, _missing(gaps, start, end)) for start, end in pairwise(edges)]
    slivers = sum((end - start) * len(ranks) for start, end, ranks in runs if len(ranks) < trainers)
    for start, end, ranks in runs:
        if ranks and (len(ranks) == trainers or slivers > MOST_SLIVERS):
            yield order.slice_of(start).start, order.slice_of(end - 1).stop
            continue
        for step in range(start, end):
            slices = (order.slice_of(step, rank, trainers) for rank in ranks)
            yield from ((samples.start, samples.stop) for samples in slices)


def _missing(gaps: tuple[Gap, ...], start: int, end: int) -> list[int]:
    """The ranks that miss steps start to end - 1."""
    return sorted({gap.rank for gap in gaps if gap.first <= start and end - 1 <= gap.last})
