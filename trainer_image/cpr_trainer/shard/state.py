"""The state of a shard's rows as pure values: applied pushes, losses, cuts, and the barrier of a replay.

A rank sends one push per step, and with it the number of rows that it pushed before. If its next push omits steps,
they were applied by an incarnation that died before it saved them: they are lost, on this shard only.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

from cpr_contract.manifests import Ranges, RowUpdates
from cpr_contract.spec import samples_at
from cpr_trainer.data.order import BatchOrder

#: The most parts of batches that a restore adds to the lost ranges; a report takes some thousands. Ranks that trained
#: without a shard return to it at different steps.
MAX_PARTIAL_BATCHES = 64
#: The announced step of a rank that has not announced one yet.
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Gap:
    """Lost steps first..last of one rank, inclusive."""

    rank: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Losses:
    """The losses since the generation's anchor, and the gaps since a restore with samples that are not known yet.

    `lost` has the known ranges, sorted and merged. first_steps[r] is the first step of rank r applied since the
    restore, 0 before that. `gaps` wait until all ranks have pushed; before that, there would be one range for each
    step and rank.
    """

    lost: Ranges
    first_steps: tuple[int, ...]
    gaps: tuple[Gap, ...] = ()

    @classmethod
    def restored(
        cls, lost: Ranges, trainers: int, applied: tuple[int, ...] = (), counted: tuple[int, ...] = ()
    ) -> Self:
        """Return the losses right after a restore.

        applied, counted: steps of the save, by rank (see `RowUpdates`). Those in between are gaps.
        """
        ranks = enumerate(zip(applied, counted, strict=False))
        return cls(lost, (0,) * trainers, tuple(Gap(rank, to + 1, step) for rank, (step, to) in ranks if to < step))

    @property
    def resumed(self) -> bool:
        """True if every rank has pushed since the restore, so that `lost` is complete."""
        return all(self.first_steps)

    def applied(self, rank: int, before: int, step: int, order: BatchOrder) -> Losses:
        """Return the losses after `step` of a rank was applied; its last applied step was `before`."""
        assert step > before, f"rank {rank} pushed step {step} after step {before}"
        if self.first_steps[rank] and step == before + 1:
            return self
        first = tuple(self.first_steps[r] or (step if r == rank else 0) for r in range(len(self.first_steps)))
        gaps = self.gaps if step == before + 1 else (*self.gaps, Gap(rank, before + 1, step - 1))
        return _folded(replace(self, first_steps=first, gaps=gaps), order)

    def missed(self, rank: int, first: int, last: int) -> Self:
        """Return the losses after steps first..last were applied without a rank, which may miss more: see `closed`."""
        before = next((each for each in self.gaps if (each.rank, each.last) == (rank, first - 1)), None)
        gap = Gap(rank, first if before is None else before.first, last)
        steps = tuple(0 if r == rank else step for r, step in enumerate(self.first_steps))
        return replace(self, first_steps=steps, gaps=(*(each for each in self.gaps if each is not before), gap))

    def closed(self, rank: int, step: int, order: BatchOrder) -> Losses:
        """Return the losses once a rank misses no more steps: it contributes from `step` on."""
        first = tuple(step if r == rank else each for r, each in enumerate(self.first_steps))
        return _folded(replace(self, first_steps=first), order)

    def first_uncounted(self, rank: int, applied: int) -> int:
        """Return the first step that a rank may miss and that is not `closed`; the one after `applied` if none is."""
        waiting = (gap.first for gap in self.gaps if gap.rank == rank and gap.last == applied)
        return applied + 1 if self.first_steps[rank] else min(waiting, default=applied + 1)

    def counted(self, applied: tuple[int, ...]) -> tuple[int, ...]:
        """Return the last step of each rank whose row updates are counted; empty if those are `applied`."""
        found = tuple(self.first_uncounted(rank, step) - 1 for rank, step in enumerate(applied))
        return () if found == applied else found

    def so_far(self, order: BatchOrder) -> Ranges:
        """Return all ranges known by now, including those of waiting gaps, as a manifest has them."""
        found = merge((*self.lost, *_ranges_of(self.gaps, order, len(self.first_steps))))
        assert _samples_in(found) >= _samples_in(self.lost), f"losses shrink from {self.lost} to {found}"
        return found

    def resumed_samples(self, order: BatchOrder) -> int | None:
        """Return the first sample that was served again after the restore; None until all ranks have pushed."""
        if not self.resumed:
            return None
        return samples_at(min(self.first_steps) - 1, order.batch_size, order.total_samples)


@dataclass(frozen=True, slots=True)
class Cuts:
    """The cuts of a shard, at which it saves all rows once every rank has reached the step.

    In lockstep no rank has passed it then, so the save is exactly of that step. Without lockstep cuts are `loose`:
    faster ranks are not held, and their later pushes are in the save too.

    `pending` is the announced cut step that is not reached, 0 if none; `taken` the last one saved. Both are of this
    incarnation in this generation: a cut that another incarnation saved must be taken again, because the anchor names
    saves of the incarnations in its roster. `at_barrier`: all ranks stood at the pending one when it
    was announced, because the job stops there; what is saved then is exact.
    """

    pending: int = 0
    taken: int = 0
    at_barrier: bool = False
    loose: bool = False

    def announced(self, step: int, applied: tuple[int, ...]) -> Self:
        """Return the cuts after a trainer named `step` as the next cut (0: none).

        The newest announcement counts: a new leader voids the cut of its predecessor. An earlier step is from a slow
        trainer, unless all ranks are at it: then the job stops there. A cut that some rank has passed can no longer
        be exact, and is ignored. Only the leader announces loose cuts, so the newest always counts.
        """
        if step in {0, self.pending} or step <= self.taken:
            return self
        if self.loose:
            return replace(self, pending=step, at_barrier=set(applied) == {step})
        earlier = step < self.pending and step > min(applied)
        if earlier or step < max(applied):
            return self
        return replace(self, pending=step, at_barrier=step == min(applied))

    def holds(self, step: int) -> bool:
        """Return whether a push of `step` must wait for the cut."""
        return 0 < self.pending < step and not self.loose

    def passed_over(self, step: int, before: int) -> bool:
        """Return whether a rank's push of `step`, after `before`, skips the cut: it can never be reached exactly.

        This shard has replaced one that had acknowledged the cut step: the cut is void.
        """
        return before < self.pending < step and not self.loose

    def void(self) -> Self:
        """Return the cuts without the pending one."""
        return replace(self, pending=0, at_barrier=False)

    def due(self, applied: tuple[int, ...]) -> bool:
        """Return whether every rank has reached the cut, so that it is taken now."""
        return 0 < self.pending <= min(applied)

    def take(self) -> Self:
        """Return the cuts after the pending one was taken."""
        return replace(self, pending=0, taken=self.pending, at_barrier=False)


class Admission(enum.Enum):
    """The decision about a push of the generation that is served."""

    APPLY = enum.auto()
    DROP = enum.auto()  # applied before: acknowledge it, change nothing
    HOLD = enum.auto()  # it follows a cut that other ranks have not reached


def admit_push(step: int, before: int, cuts: Cuts, *, resumed: bool) -> Admission:
    """Decide about a rank's push of `step`, where its last applied step is `before`.

    No rank is held before all ranks have `resumed`: pushed to this shard, the replay included. A rank that trains
    without the shard may be waiting for the held one, and so may a rank with a later push in the replay.
    """
    if step <= before:
        return Admission.DROP
    if resumed and cuts.holds(step) and not cuts.passed_over(step, before):
        return Admission.HOLD
    return Admission.APPLY


@dataclass(frozen=True, slots=True)
class ReplayBarrier:
    """Blocks lookups after a restore until every rank has pushed again what it keeps.

    Each rank announces the last step that it will push again. Until all have done so, some rows are older than others,
    and a rank that read them would miss updates. announced[r] is that step of rank r, or UNKNOWN; the tuple is empty
    once the barrier is open.
    """

    announced: tuple[int, ...] = ()

    @classmethod
    def closed(cls, trainers: int) -> Self:
        """Return the barrier right after a restore."""
        return cls((UNKNOWN,) * trainers)

    @property
    def open(self) -> bool:
        """True if every rank has pushed again all that it announced: rows may be read."""
        return not self.announced

    def replays(self, rank: int, step: int) -> bool:
        """Return whether a rank's push of `step` is one of those that it announced."""
        return not self.open and step <= self.announced[rank]

    def is_next(self, rank: int, order: int, heads: Mapping[int, int], applied: tuple[int, ...]) -> bool:
        """Return whether a rank's push is to be applied now: pushes keep the order in which they were applied before.

        order: the push's place in that order; 0 if it has none, and then it comes last. heads: by rank, the place of
        its first waiting push. A rank that has pushes left and none waiting may send an earlier one.
        """
        for other, announced in enumerate(self.announced):
            if other == rank or UNKNOWN < announced <= applied[other]:
                continue
            if other not in heads or 0 < heads[other] < (order or math.inf):
                return False
        return True

    def joined(self, rank: int) -> Self:
        """Return the barrier after a rank reconnected: it may be another process, which keeps less."""
        return self._with(rank, UNKNOWN)

    def announce(self, rank: int, step: int) -> Self:
        """Return the barrier after a rank's announcement. Only the first one counts; later ones are of new steps."""
        if self.open or self.announced[rank] != UNKNOWN:
            return self
        return self._with(rank, step)

    def after(self, applied: tuple[int, ...]) -> Self:
        """Return the barrier once these steps of each rank are applied."""
        done = all(UNKNOWN < step <= now for step, now in zip(self.announced, applied, strict=False))
        return replace(self, announced=()) if done else self

    def _with(self, rank: int, step: int) -> Self:
        if self.open:
            return self
        return replace(self, announced=(*self.announced[:rank], step, *self.announced[rank + 1 :]))


@dataclass(slots=True)
class Progress:
    """The pushes in the rows, in one generation. `dirty`: no save has the last of them.

    `replayed` samples were pushed again since the restore, as announced to `replay_barrier`: since `replay_began`
    (None: not yet), within `replay_s` seconds (None: not complete). `order` is the place of the last push among those
    of all ranks; `in_order`: none was applied after one that followed it before the restore.
    """

    generation: int
    applied: tuple[int, ...]
    losses: Losses
    row_updates: RowUpdates
    total_samples: int = 0
    cuts: Cuts = Cuts()
    dirty: bool = False
    replay_barrier: ReplayBarrier = ReplayBarrier()
    replayed: int = 0
    replay_began: float | None = None
    replay_s: float | None = None
    order: int = 0
    in_order: bool = True

    @property
    def step(self) -> int:
        """The step after which a save made now is named.

        It is the last step that any rank has pushed; with loose cuts, one that all ranks have reached.
        """
        if not self.cuts.loose:
            return max(self.applied)
        return self.cuts.pending if self.cuts.due(self.applied) else min(self.applied)

    @property
    def resumed(self) -> bool:
        """True if every rank pushes again and the replay is complete: the losses of the restore are known."""
        return self.losses.resumed and self.replay_barrier.open


def _folded(losses: Losses, order: BatchOrder) -> Losses:
    """Return the losses with gaps as ranges, if no rank can miss more."""
    return replace(losses, lost=losses.so_far(order), gaps=()) if losses.resumed else losses


def after_push(account: RowUpdates, rank: int, before: int, rows: int) -> RowUpdates:
    """Return the account after a push of `rows` rows was applied; its rank had pushed `before` rows until then.

    Rows that the rank pushed and the account does not have are lost.
    """
    lost = before - account.pushed[rank]
    pushed = tuple(before + rows if r == rank else count for r, count in enumerate(account.pushed))
    return replace(account, pushed=pushed, lost=account.lost + lost)


def order_of(total_samples: int, batch_size: int) -> BatchOrder:
    """Return the order of samples in steps, which is all that losses need; it has no permutation of rows."""
    return BatchOrder(rows=max(total_samples, 1), total_samples=total_samples, batch_size=batch_size, seed=0)


def merge(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the union of half-open ranges, sorted, without empty or touching ones."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(pair for pair in ranges if pair[0] < pair[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def _samples_in(ranges: Ranges) -> int:
    return sum(end - start for start, end in ranges)


def _ranges_of(gaps: tuple[Gap, ...], order: BatchOrder, trainers: int) -> Iterator[tuple[int, int]]:
    """Yield the samples in the gaps. Steps that all ranks miss are whole batches, and a run of them is one range.

    Steps that only some ranks miss count as whole batches too if they would give too many ranges: that overestimates.
    """
    edges = sorted({edge for gap in gaps for edge in (gap.first, gap.last + 1)})
    runs = [(start, end, _missing(gaps, start, end)) for start, end in pairwise(edges)]
    partial = sum((end - start) * len(ranks) for start, end, ranks in runs if len(ranks) < trainers)
    for start, end, ranks in runs:
        if ranks and (len(ranks) == trainers or partial > MAX_PARTIAL_BATCHES):
            yield order.slice_of(start).start, order.slice_of(end - 1).stop
            continue
        for step in range(start, end):
            slices = (order.slice_of(step, rank, trainers) for rank in ranks)
            yield from ((samples.start, samples.stop) for samples in slices)


def _missing(gaps: tuple[Gap, ...], start: int, end: int) -> list[int]:
    """Return the ranks that miss steps start to end - 1."""
    return sorted({gap.rank for gap in gaps if gap.first <= start and end - 1 <= gap.last})
