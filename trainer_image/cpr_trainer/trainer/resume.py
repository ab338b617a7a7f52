"""Resuming a trainer's process: the dense state after the last complete step, in memory that outlives the process.

Parameters and optimizer state live in that memory and change in place. They are copied before a step changes them, and
the copy is valid until the step is complete. All other values are copied after the step, into two records in turn. One
store of a number, which names the valid copy and record, commits a step. On other devices than the CPU both are copies.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from cpr_contract.codec import from_json, to_json
from cpr_contract.manifests import Ranges
from cpr_contract.reports import HeldOutScores
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.memory import Kind, MappedMemory, Memory, ResumeFile, SizeOf
from cpr_trainer.embedding.placement import layout_hash
from cpr_trainer.exchange.outbox import STATE_WIDTH
from cpr_trainer.runtime.supervision import FIRST_FREE_WORD, ControlBlock
from cpr_trainer.trainer.scores import BOUNDARY_NUMBERS, NO_EVALUATION, EarlyStopState, Scored, SegmentBoundary
from cpr_trainer.trainer.state import DenseState

_SUPERVISOR, _VALID, _GENERATION, _STARTED = range(FIRST_FREE_WORD, FIRST_FREE_WORD + 4)
#: Values of `TrainerControlBlock.valid` other than the copies, which count from 1: there is no state yet, or it is
#: being replaced as a whole.
NOTHING, CHANGING = 0, -1
_TEXT_BYTES = 1 << 20
_DONE, _PUSHED, _SCORED_STEP, _UNMERGED, _TEXT = range(5)
_NUMBERS = 5
_NONE = -1

_Form = tuple[tuple[int, ...], DTypeLike]


class TrainerControlBlock(ControlBlock):
    """The control block of one trainer's resume file."""

    def __init__(self, file: ResumeFile, job: JobSpec) -> None:
        super().__init__(file.words, f"trainer {job.job_uid} {layout_hash(job.model)} {job.shards} {job.trainers}")
        self.file = file

    @classmethod
    def new(cls, job: JobSpec) -> TrainerControlBlock:
        """Return the control block of a new file, and write its owner. Raises OSError."""
        block = cls(ResumeFile.new(), job)
        block.initialise()
        block._words[_SUPERVISOR] = os.getpid()
        return block

    @property
    def supervisor(self) -> int:
        """The pid of the process that created the file."""
        return int(self._words[_SUPERVISOR])

    @property
    def usable(self) -> bool:
        """True if the next process may resume, or start without a state because there is none yet.

        It may not if the last process had begun to replace a state: the messages sent to shards are then unknown.
        """
        return super().usable and self.valid != CHANGING

    @property
    def valid(self) -> int:
        """The valid copy of the state, NOTHING or CHANGING."""
        return int(self._words[_VALID])

    @valid.setter
    def valid(self, copy: int) -> None:
        self._words[_VALID] = copy

    def holds(self, generation: int) -> bool:
        """Return whether there is a state of this generation."""
        return self.valid > NOTHING and int(self._words[_GENERATION]) == generation

    def reset(self, generation: int) -> None:
        """Discard the state: a generation begins."""
        self.valid = NOTHING
        self._words[_STARTED] = 0
        self._words[_GENERATION] = generation

    def invalidate(self) -> None:
        """Mark the state invalid before it is replaced as a whole."""
        if self.valid > NOTHING:
            self.valid = CHANGING

    @property
    def samples_started(self) -> int:
        """The number of samples in pushes that a shard may have received in this generation."""
        return int(self._words[_STARTED])

    @samples_started.setter
    def samples_started(self, samples: int) -> None:
        self._words[_STARTED] = samples


@dataclass(frozen=True, slots=True)
class ReportedState:
    """Fields of a trainer's reports that cannot be computed from other values: see `TrainerReport`."""

    lost: Ranges = ()
    evaluation: HeldOutScores | None = None
    loss: float | None = None
    degraded_samples: int = 0
    early_stop_state: EarlyStopState = NO_EVALUATION


@dataclass(frozen=True, slots=True, eq=False)
class ResumePoint:
    """The point at which the last process stopped. pushed: the last step that it pushed, None for none.

    link_states: int64 [S, STATE_WIDTH], of the exchange.
    """

    pushed: int | None
    link_states: Ints
    reported: ReportedState


class ResumeMemory:
    """Keeps a dense state for the next process; the state lives in the file's memory from now on.

    shards: the number of the job's shards.
    """

    def __init__(self, control_block: TrainerControlBlock, state: DenseState, shards: int) -> None:
        self._control_block = control_block
        self._state = state
        replica = state.replica
        self._in_place = replica.device.type == "cpu"
        shape = tuple(replica.live.shape)
        forms = [(shape, np.float32)] * 2 + _Record.forms(state, shards) * 2
        area = next(control_block.file.areas(Kind.DENSE), None)  # of the last process, if there was one
        if area is None:
            size = SizeOf()
            for form, dtype in forms:
                size.array(form, dtype)
            area = control_block.file.grow(Kind.DENSE, size.bytes)
        memory = MappedMemory(area.mapping)
        self._dense = [torch.from_numpy(memory.array(shape, np.float32)) for _ in range(2)]
        self._records = [_Record(memory, state, shards) for _ in range(2)]
        self._copy = self._record = 0
        self._encoded: tuple[ReportedState | None, bytes] = (None, b"")

    def reset(self, generation: int) -> None:
        """Discard what an earlier process kept: the state begins a generation."""
        self._control_block.reset(generation)
        self._move_state_into_file()

    def restore(self) -> ResumePoint:
        """Restore the state of the last process, which there must be."""
        valid = self._control_block.valid
        assert valid > NOTHING, "there is no state to resume from"
        self._copy, self._record = (valid - 1) % 2, (valid - 1) // 2
        resumed = self._records[self._record].load(self._state)
        self._state.replica.live.copy_(self._dense[self._copy])
        if self._in_place:
            self._move_state_into_file()
            self._copy = 0
            self._publish()
        return resumed

    @torch.no_grad()
    def begin_step(self) -> None:
        """Copy the parameters before they change."""
        if not self._in_place or self._control_block.valid <= NOTHING:
            return
        if self._copy == 1:  # the last step was not committed
            self._control_block.valid = CHANGING
            return
        self._dense[1].copy_(self._dense[0])
        self._copy = 1
        self._publish()

    @torch.no_grad()
    def prepare(self, reported: ReportedState) -> None:
        """Copy the next valid state, but for the arguments of `commit`."""
        if not self._in_place:
            self._dense[1 - self._copy].copy_(self._state.replica.live)
        if reported != self._encoded[0]:
            self._encoded = reported, to_json(reported).encode()
        self._records[1 - self._record].write(self._state, self._encoded[1])

    def commit(self, pushed: int | None, link_states: Ints | None) -> None:
        """Make the prepared state the one to resume from; without `link_states` no process can resume.

        pushed, link_states: see `ResumePoint`. The push is kept, and no part of it has been sent.
        """
        if link_states is None:
            self._control_block.valid = CHANGING
            return
        self._record = 1 - self._record
        self._records[self._record].complete(pushed, link_states)
        self._copy = 0 if self._in_place else 1 - self._copy
        self._publish()

    def _publish(self) -> None:
        self._control_block.valid = 1 + self._copy + 2 * self._record

    def _move_state_into_file(self) -> None:
        if self._in_place:
            self._dense[0].copy_(self._state.replica.live)
            self._state.replica.move_to(self._dense[0])


class _Record:
    """All of a state but its parameters and their optimizer state."""

    def __init__(self, memory: Memory, state: DenseState, shards: int) -> None:
        arrays = [memory.array(shape, dtype) for shape, dtype in self.forms(state, shards)]
        self._numbers: Ints = arrays[0]
        self._link_states: Ints = arrays[1]
        self._text: NDArray[np.uint8] = arrays[2]
        self._sums, *others = map(torch.from_numpy, arrays[3:])
        count = len(others) - len(state.replica.buffers())
        self._counters, self._boundary, self._buffers = others[:3], others[3:count], others[count:]

    @staticmethod
    def forms(state: DenseState, shards: int) -> list[_Form]:
        """Return the shapes and dtypes of its arrays."""
        scored = state.scores.scored()
        counters = tuple(scored.merged.shape)
        boundary: list[_Form] = [((BOUNDARY_NUMBERS,), np.float64), (counters, np.int64)]
        buffers = [((buffer.nbytes,), np.uint8) for buffer in state.replica.buffers().values()]
        return [
            ((_NUMBERS,), np.int64),
            ((shards, STATE_WIDTH), np.int64),
            ((_TEXT_BYTES,), np.uint8),
            ((3,), np.float64),
            *[(counters, np.int64)] * 3,
            *(boundary if scored.boundary is not None else ()),
            *buffers,
        ]

    def write(self, state: DenseState, text: bytes) -> None:
        if len(text) > _TEXT_BYTES:
            raise OverflowError(f"the reported state takes {len(text)} bytes, and there are {_TEXT_BYTES}")
        scored = state.scores.scored()
        self._counters[0].copy_(scored.merged)
        self._counters[1].copy_(scored.own)
        if scored.unmerged is not None:
            self._counters[2].copy_(scored.unmerged)
        if scored.boundary is not None:
            self._boundary[0].copy_(scored.boundary.numbers())
            self._boundary[1].copy_(scored.boundary.counters)
        self._sums[:2] = scored.loss_shares
        self._sums[2] = state.replica.optimizer_steps
        buffers = state.replica.buffers().values() if self._buffers else ()  # a state_dict takes some time
        for place, buffer in zip(self._buffers, buffers, strict=True):
            place.copy_(buffer.detach().cpu().contiguous().reshape(-1).view(torch.uint8))
        self._text[: len(text)] = np.frombuffer(text, np.uint8)
        self._numbers[[_DONE, _SCORED_STEP, _TEXT]] = state.done, scored.step, len(text)
        self._numbers[_UNMERGED] = scored.unmerged is not None

    def complete(self, pushed: int | None, link_states: Ints) -> None:
        self._numbers[_PUSHED] = _NONE if pushed is None else pushed
        self._link_states[:] = link_states

    def load(self, state: DenseState) -> ResumePoint:
        done, pushed, scored_step, unmerged, length = self._numbers.tolist()
        reported = from_json(ReportedState, self._text[:length].tobytes())
        merged, own, interrupted = (counters.clone() for counters in self._counters)
        shares = self._sums[:2].clone()
        boundary = SegmentBoundary.of(*(each.clone() for each in self._boundary)) if self._boundary else None
        scored = Scored(merged, own, interrupted if unmerged else None, shares, scored_step, boundary)
        state.scores.resume(scored, reported.loss)
        state.replica.optimizer_steps = float(self._sums[2])
        with torch.no_grad():
            for place, buffer in zip(self._buffers, state.replica.buffers().values(), strict=True):
                buffer.copy_(place.clone().view(buffer.dtype).reshape(buffer.shape))
        state.done, state.lost, state.early_stop_state = done, reported.lost, reported.early_stop_state
        return ResumePoint(None if pushed == _NONE else pushed, self._link_states.copy(), reported)
