"""State that a worker shares with its averaging thread: copies and targets, every rank's steps, and scores."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from cpr_trainer.trainer.async_sync.averaging import blend

#: Steps between two copies that a trainer offers: averaging then costs less than a step.
GAP_STEPS = 4
#: Number of sync gaps in the reported mean.
_GAPS = 64


@dataclass(frozen=True, slots=True, eq=False)
class ScoreDelta:
    """Scores of a trainer up to `step` since the previous delta, as `Scores.to_merge` returns them."""

    step: int
    counters: Tensor
    losses: Tensor


class AveragingState:
    """State of rank `rank` in one generation. `parameters` are the worker's, float32 [p], flat, on its device.

    Copies and targets are on the CPU.

    The worker calls `begin`, `after_step`, `take_merged` and `conclude`, and sets `done` and `halted_step`; the thread
    calls the rest. `steps[r]` is the last combined step of rank r, as received by this trainer;
    `done` is the worker's last step.

    All trainers stop at a barrier where the job ends, or where the roster requires it. `halted_step` is the step after
    which the worker stopped, and no shard has a later one of its rank; -1 while it trains. `barrier_step` is the step
    at which all stop, as the leader announced it last; -1 before.
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
        """Number of ranks."""
        return len(self.steps)

    @property
    def sync_gap(self) -> float | None:
        """Mean number of steps between the last blends; None before the first."""
        gaps = tuple(self._gaps)
        return sum(gaps) / len(gaps) if gaps else None

    def begin(self, steps: tuple[int, ...]) -> None:
        """Take every rank's last combined step from a state; this worker continues after its own."""
        assert len(steps) == self.trainers, f"{len(steps)} steps of {self.trainers} trainers"
        self.steps[:] = steps
        self.done = steps[self.rank]

    def held_steps(self) -> tuple[int, ...]:
        """Return the last step of each rank that this trainer's state contains: of its own rank, the last one."""
        return tuple(self.done if rank == self.rank else step for rank, step in enumerate(self.steps))

    def after_step(self) -> None:
        """Blend towards the latest target, if one has arrived; called by the worker, once a step."""
        self.halted_step = -1
        self._since_blend += 1
        target, self._target = self._target, None
        if target is not None:
            blend(self._parameters, target.to(self._parameters.device))
            self._gaps.append(self._since_blend)
            self._since_blend = 0

    def conclude(self, parameters: Tensor) -> None:
        """Take parameters that contain every rank's steps up to the barrier, where all have stopped."""
        self.steps[:] = [self.barrier_step] * self.trainers
        self._parameters.copy_(parameters)
        self._target = None

    def due(self) -> bool:
        """Return whether this trainer's next copy is due: after some steps, or at the barrier."""
        at_barrier = self.done == self.barrier_step and self._offered < self.done
        return at_barrier or self.done - max(self._offered, 0) >= GAP_STEPS

    def take_copy(self) -> tuple[int, Tensor]:
        """Return the worker's last step and a copy; some of its numbers may contain the step under way."""
        step = self._offered = self.done
        return step, self._parameters.detach().to("cpu", copy=True)

    def offer_again(self) -> None:
        """Offer another copy: the last one may have been lost."""
        self._offered = -1

    def set_barrier(self, step: int) -> None:
        """Stop all after `step`; the copy of that step is offered in any case."""
        self.barrier_step = step
        self.offer_again()

    def put_target(self, target: Tensor) -> None:
        """Let the worker blend towards this target after its present step."""
        self._target = target

    def put_merged(self, counters: bytearray) -> None:
        """Store the scores of all trainers, int64 [n], until the worker takes them."""
        self._merged = torch.frombuffer(counters, dtype=torch.int64)

    def take_merged(self) -> Tensor | None:
        """Return the latest scores of all trainers; None if none arrived since the last call."""
        merged, self._merged = self._merged, None
        return merged

    def merge_steps(self, steps: tuple[int, ...]) -> None:
        """Take in every rank's steps from the leader; the larger one of each rank counts."""
        assert len(steps) == self.trainers, f"{len(steps)} steps of {self.trainers} trainers"
        self.steps[:] = map(max, self.steps, steps)


class AveragingThread:
    """Runs `_run_once` again and again on a thread. `check` raises on the main thread what has ended it."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._failure: BaseException | None = None

    def check(self) -> None:
        """Raise the error that has ended the thread, or the leader's last message (Finished, Superseded)."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._run_once()
        except BaseException as error:  # noqa: BLE001 -- the main thread raises it
            self._failure = error

    def _run_once(self) -> None:
        raise NotImplementedError


def pack_target(steps: tuple[int, ...], target: Tensor) -> bytes:
    """Return every rank's steps, int64 [W], and a target, float32 [p], as bytes."""
    return torch.tensor(steps, dtype=torch.int64).numpy().tobytes() + target.numpy().tobytes()


def unpack_target(data: bytearray, trainers: int) -> tuple[tuple[int, ...], Tensor]:
    """Return the arguments of `pack_target`; the target shares the memory of `data`."""
    steps = torch.frombuffer(data, dtype=torch.int64, count=trainers)
    return tuple(steps.tolist()), torch.frombuffer(data, dtype=torch.float32, offset=8 * trainers)


def pack_scores(delta: ScoreDelta) -> bytes:
    """Return a delta's counters, int64 [n], and losses, float64 [2], as bytes."""
    return delta.losses.numpy().tobytes() + delta.counters.numpy().tobytes()


def unpack_scores(step: int, data: bytearray) -> ScoreDelta:
    """Return the argument of `pack_scores`."""
    losses = torch.frombuffer(data, dtype=torch.float64, count=2)
    return ScoreDelta(step, torch.frombuffer(data, dtype=torch.int64, offset=16), losses)
