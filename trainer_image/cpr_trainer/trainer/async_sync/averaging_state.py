"""What a worker and the thread that averages for it share: copies and targets, every rank's steps, scores."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from cpr_trainer.trainer.async_sync.averaging import blend

#: A trainer offers its next copy after so many steps: averaging costs less than a step then.
GAP_STEPS = 4
#: Sync gaps that the reported mean is over.
_GAPS = 64


@dataclass(frozen=True, slots=True, eq=False)
class ScoreDelta:
    """What a trainer scored up to `step` since the delta before, as `Scores.to_merge` returns it."""

    step: int
    counters: Tensor
    losses: Tensor


class AveragingState:
    """One generation's, of rank `rank`; `parameters` are the worker's own, float32 [p], flat, on its device.

    Copies and targets are on the CPU.

    The worker calls `begin`, `stepped`, `take_merged` and `conclude`, and halts; the thread does the rest. `steps[r]`
    is the last step of rank r whose copy was combined, as far as this trainer has heard; the worker is at `done`.

    All come together at a step where the job ends, and where they are asked to meet. `halted_step` is the step after
    which the worker stands, and no shard has a later one of its rank; -1 while it trains. `barrier_step` is where all
    are to stand, as the leader named it last; -1 before.
    """

    def __init__(self, parameters: Tensor, rank: int, trainers: int) -> None:
        self.rank = rank
        self.steps = [0] * trainers
        self.done = 0
        self.halted_step = -1
        self.barrier_step = -1
        self.outgoing: deque[ScoreDelta] = deque()
        self.arrived: deque[ScoreDelta] = deque()
        self._parameters = parameters
        self._offered = -1
        self._target: Tensor | None = None
        self._merged: Tensor | None = None
        self._since_blend = 0
        self._gaps: deque[int] = deque(maxlen=_GAPS)

    @property
    def trainers(self) -> int:
        """How many ranks there are."""
        return len(self.steps)

    @property
    def sync_gap(self) -> float | None:
        """The mean number of steps between two blends, over the last ones; None before the first."""
        gaps = tuple(self._gaps)
        return sum(gaps) / len(gaps) if gaps else None

    def begin(self, steps: tuple[int, ...]) -> None:
        """Stand where a state says: every rank's last combined step; this worker goes on after its own."""
        self.steps[:] = steps
        self.done = steps[self.rank]

    def held_steps(self) -> tuple[int, ...]:
        """Return what a state of this trainer holds of each rank: of its own, everything."""
        return tuple(self.done if rank == self.rank else step for rank, step in enumerate(self.steps))

    def stepped(self) -> None:
        """Blend towards the target that came meanwhile, if one did; called by the worker, once a step."""
        self.halted_step = -1
        self._since_blend += 1
        target, self._target = self._target, None
        if target is not None:
            blend(self._parameters, target.to(self._parameters.device))
            self._gaps.append(self._since_blend)
            self._since_blend = 0

    def conclude(self, parameters: Tensor) -> None:
        """Take these parameters, in which every rank's steps up to the meeting are: all stand there."""
        self.steps[:] = [self.barrier_step] * self.trainers
        self._parameters.copy_(parameters)
        self._target = None

    def due(self) -> bool:
        """Whether this trainer's next copy is to be offered: it has moved on, or come to where all meet."""
        arrived = self.done == self.barrier_step and self._offered < self.done
        return arrived or self.done - max(self._offered, 0) >= GAP_STEPS

    def take_copy(self) -> tuple[int, Tensor]:
        """Return the worker's last step and a copy; a step that is under way may be in some numbers of it."""
        step = self._offered = self.done
        return step, self._parameters.detach().to("cpu", copy=True)

    def offer_again(self) -> None:
        """The copy that was offered last may never have come: offer another."""
        self._offered = -1

    def set_barrier(self, step: int) -> None:
        """Let all come together after `step`; the copy of then is offered, whatever was offered before."""
        self.barrier_step = step
        self.offer_again()

    def put_target(self, target: Tensor) -> None:
        """Let the worker blend towards this, after the step that it is at."""
        self._target = target

    def put_merged(self, counters: bytearray) -> None:
        """Keep the scores of all, int64 [n], until the worker takes them."""
        self._merged = torch.frombuffer(counters, dtype=torch.int64)

    def take_merged(self) -> Tensor | None:
        """Return the scores of all that came last; None if none came since the last call."""
        merged, self._merged = self._merged, None
        return merged

    def merge_steps(self, steps: tuple[int, ...]) -> None:
        """Take in every rank's steps as the leader knows them; of each rank the most advanced counts."""
        self.steps[:] = map(max, self.steps, steps)


def pack_target(steps: tuple[int, ...], target: Tensor) -> bytes:
    """Return every rank's steps, int64 [W], and a target, float32 [p], as bytes."""
    return torch.tensor(steps, dtype=torch.int64).numpy().tobytes() + target.numpy().tobytes()


def unpack_target(data: bytearray, trainers: int) -> tuple[tuple[int, ...], Tensor]:
    """Return what `pack_target` packed; the target shares the memory of `data`."""
    steps = torch.frombuffer(data, dtype=torch.int64, count=trainers)
    return tuple(steps.tolist()), torch.frombuffer(data, dtype=torch.float32, offset=8 * trainers)


def pack_scores(delta: ScoreDelta) -> bytes:
    """Return a delta's counters, int64 [n], and losses, float64 [2], as bytes."""
    return delta.losses.numpy().tobytes() + delta.counters.numpy().tobytes()


def unpack_scores(step: int, data: bytearray) -> ScoreDelta:
    """Return what `pack_scores` packed."""
    losses = torch.frombuffer(data, dtype=torch.float64, count=2)
    return ScoreDelta(step, torch.frombuffer(data, dtype=torch.int64, offset=16), losses)
