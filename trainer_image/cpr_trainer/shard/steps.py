"""Merged steps: in lockstep a shard takes one optimizer step for each step of the job, with any number of trainers.

A rank sends its contribution to step s before the sum over trainers, enters the sum once every shard has received it,
and commits s after the sum. A shard applies s once all ranks have committed: the sum of their contributions, in the
order of ranks. A member that is lost in between has either left contributions everywhere, and its successor only
commits, or no row has changed anywhere, and all compute the step again (ADR 45).

A step that a rank misses for good is the sum of the other contributions, undivided. The rank's own announcement
decides that, never a time-out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from cpr_contract.spec import JobSpec, steps_in
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.merged_rows import BandRows, Contribution, KeyedRows, RowChanges, merge, plan_changes
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.exchange.frames import Frame, FrameError, Header, Operation
from cpr_trainer.shard.service import Client, Service
from cpr_trainer.shard.state import Progress, after_push, order_of
from cpr_trainer.shard.status import Metrics


@dataclass(frozen=True, slots=True)
class Commitment:
    """A rank's announcement: its steps up to `step` are complete on the dense side.

    It can send its contributions from step `first` on; the shard misses earlier ones for good. `row_updates` counts the
    rows in its contributions up to `step`.
    """

    step: int
    first: int
    row_updates: int


@dataclass(frozen=True, slots=True)
class DueStep:
    """A step to apply now, with the contributions of `ranks`. Without ranks: all steps up to `step` are lost."""

    step: int
    ranks: tuple[int, ...]


def due_step(
    position: int, held: Mapping[int, int], commitments: Sequence[Commitment | None], committed_for_all: int
) -> DueStep | None:
    """Return what follows step `position`, the last one in the rows; None: a rank has to send something first.

    held: by rank, the step of the contribution that the shard holds. commitments: by rank, None before its first.
    committed_for_all: the step that the leader of a job that stops has committed for all ranks.
    """
    step, ranks, lost = position + 1, list[int](), list[int]()
    for rank, commitment in enumerate(commitments):
        if step > max(committed_for_all, commitment.step if commitment else 0):
            return None
        if held.get(rank) == step:
            ranks.append(rank)
        elif commitment is not None and step < commitment.first:
            lost.append(min(commitment.first - 1, commitment.step))
        else:
            return None
    return DueStep(step, tuple(ranks)) if ranks else DueStep(min(lost), ())


class StepService(Service):
    """A `Service` that merges the pushes of each step. All ranks have applied the same steps."""

    def __init__(self, job: JobSpec, placement: Placement, index: int, arena: Arena, metrics: Metrics) -> None:
        super().__init__(job, placement, index, arena, metrics)
        self._forget()

    def start(self, progress: Progress) -> None:
        """See `Service`."""
        self._forget()
        super().start(progress)

    def resume(self, progress: Progress, pushes: Sequence[Header]) -> None:
        """See `Service`: the pushes of one step."""
        if pushes:
            progress.total_samples = pushes[0].total_samples
            self._account_step(progress, pushes[0].step, pushes)
        super().resume(progress, ())

    def stop(self) -> None:
        """See `Service`."""
        self._forget()
        super().stop()

    def joined(self, client: Client) -> None:
        """See `Service`: the rank's process may be another one, which commits anew."""
        if self.progress is not None:
            self._commitments[client.rank] = None
        super().joined(client)

    def answer(self, rank: int, generation: int) -> Header:
        """See `Service`: `order` is the first step that the rank's row updates do not count."""
        header, progress = super().answer(rank, generation), self.progress
        if progress is None or header.operation is not Operation.PONG:
            return header
        return header._replace(order=progress.losses.first_uncounted(rank, progress.applied[rank]))

    def retry(self) -> None:
        """See `Service`."""
        if self.push_waits and self.progress is not None:
            self.push_waits = False
            self._apply_due(self.progress)
            self._handle_backlogs()

    def _forget(self) -> None:
        self._held: dict[int, tuple[Header, Contribution]] = {}
        self._planned: tuple[DueStep, RowChanges] | None = None
        self._commitments: list[Commitment | None] = [None] * self._job.trainers
        self._committed_for_all = 0

    def _announce_replay(self, header: Header) -> None:
        """Ignore pings: a commitment announces the replay."""

    def _may_read(self, progress: Progress, header: Header) -> bool:
        """Return whether the rows are as of the step before the lookup's."""
        return progress.applied[0] >= header.step - 1

    def _commit(self, client: Client, header: Header) -> None:
        progress = self.progress
        if progress is None or header.generation != progress.generation:
            client.send(self.answer(client.rank, header.generation))
            return
        self._commitments[client.rank] = Commitment(header.step, header.order, header.row_updates)
        if header.count:
            self._committed_for_all = max(self._committed_for_all, header.step)
        super()._announce_replay(header)
        self._close_gaps(progress)
        self._apply_due(progress)

    def _push(self, client: Client, frame: Frame, progress: Progress) -> bool:
        header, position = frame.header, progress.applied[0]
        if header.step <= position:
            client.send(self._header(Operation.ACK, client.rank))
            self.metrics.pushes.labels("drop").inc()
            return True
        if header.step > position + 1:
            return False
        steps = steps_in(progress.total_samples, self._job.data.batch_size)
        if header.step > steps:
            raise FrameError(f"a push of step {header.step}, but the job has {steps} steps")
        self._held[client.rank] = header, self._contribution(frame.detached())
        self._planned = None
        client.send(self._header(Operation.RECEIVED, client.rank, header.ticket)._replace(step=header.step))
        self._apply_due(progress)
        if len(self._held) == self._job.trainers:  # now, because the sum over trainers hides it
            self._plan(DueStep(header.step, tuple(range(self._job.trainers))))
        return True

    def _plan(self, due: DueStep) -> RowChanges:
        """Return what the next step changes, which is computed once: no row changes until then."""
        if self._planned is None or self._planned[0] != due:
            merged = merge([self._held[rank][1] for rank in due.ranks])
            self._planned = due, plan_changes(merged, self.dynamic, due.step)
        return self._planned[1]

    def _contribution(self, frame: Frame) -> Contribution:
        rows = self.frame_rows.find(frame)
        if not (rows.slots[1:] > rows.slots[:-1]).all():
            raise FrameError("rows are not in the order of their places")
        keys = {band.band: each for band, each in zip(self.dynamic, rows.keys, strict=True)}
        found, first, edges = list[BandRows | KeyedRows](), 0, self.arena.bounds(rows.slots)
        for band, dim in enumerate(self._job.model.band_dims):
            mine = slice(edges[band], edges[band + 1])
            last = first + dim * (len(keys[band]) if band in keys else mine.stop - mine.start)
            gradients = rows.values[first:last].reshape(-1, dim)
            found.append(
                KeyedRows(keys[band], gradients)
                if band in keys
                else BandRows(rows.slots[mine], rows.numbers[mine], gradients)
            )
            first = last
        return tuple(found)

    def _apply_due(self, progress: Progress) -> None:
        """Apply all steps that are due. A save in progress may have to read on first."""
        while True:
            held = {rank: header.step for rank, (header, _) in self._held.items()}
            due = due_step(progress.applied[0], held, self._commitments, self._committed_for_all)
            if due is None:
                return
            if due.ranks and not self._apply_step(progress, due):
                self.push_waits = True
                return
            self._account_step(progress, due.step, [self._held.pop(rank)[0] for rank in due.ranks])
            self.persist()
            for client in self._clients:
                client.send(self._header(Operation.ACK, client.rank))
            self._cut_if_due(progress)
            self._backlogs_changed = True

    def _apply_step(self, progress: Progress, due: DueStep) -> bool:
        """Apply the sum of the contributions; False while the undo log of a save has no space for it."""
        headers = [self._held[rank][0] for rank in due.ranks]
        changes = self._plan(due)
        if len(changes.slots):
            self.before_change(changes.slots)
            note = b"".join(header.pack() for header in headers)
            applied = self.arena.apply(
                changes.slots, changes.numbers, changes.gradients, due.step, note, planned=changes.planned
            )
            if not applied:
                return False
            self.on_change(changes.slots)
        if not progress.replayed and any(progress.replay_barrier.replays(each.rank, each.step) for each in headers):
            progress.replay_began = monotonic()
        self.metrics.pushes.labels("apply").inc(len(headers))
        self.metrics.rows_changed.inc(len(changes.slots))
        self.trace.lap("apply")
        self.trace.end(due.step)
        return True

    def _account_step(self, progress: Progress, step: int, headers: Sequence[Header]) -> None:
        """Count the steps up to `step`, which are in the rows with these contributions to the last one."""
        before, present = progress.applied[0], {header.rank for header in headers}
        if 0 < progress.cuts.pending < step:  # lost steps lead over the cut
            self.given_up_step, progress.cuts = progress.cuts.pending, progress.cuts.void()
        for header in headers:
            self._account(progress, header)
        for rank in range(len(progress.applied)):
            if rank not in present:
                progress.losses = progress.losses.missed(rank, before + 1, step)
        progress.applied, progress.dirty = (step,) * len(progress.applied), True
        self._close_gaps(progress)
        self._open_barrier_if_replayed(progress)

    def _close_gaps(self, progress: Progress) -> None:
        """Note that ranks miss no more steps, and how many row updates they missed, once that is known."""
        order = order_of(progress.total_samples, self._job.data.batch_size)
        for rank, commitment in enumerate(self._commitments):
            if commitment and not progress.losses.first_steps[rank] and progress.applied[rank] >= commitment.step:
                progress.row_updates = after_push(progress.row_updates, rank, commitment.row_updates, 0)
                progress.losses = progress.losses.closed(rank, commitment.step + 1, order)
