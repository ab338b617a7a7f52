"""The dense state as the next process of a trainer finds it, as it was after the last complete step.

The parameters and what the optimizer keeps of them are changed in place, in memory that outlives the process. Before a
step changes them they are copied, and the copy is valid until the step is complete. Everything else is copied after
the step, into one of two records in turn. So one store of a number takes the next process from one step to the next:
it names what is valid. On another device than the CPU both copies are of what is there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from cpr_contract.codec import from_json, to_json
from cpr_contract.manifests import Ranges
from cpr_contract.reports import HeldOutScores
from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.memory import Kind, MappedMemory, Memory, ResumeFile, SizeOf
from cpr_trainer.exchange.outbox import STATE_WIDTH
from cpr_trainer.trainer.page import CHANGING, NOTHING, ResumeHeader
from cpr_trainer.trainer.scores import NO_EVALUATION, EarlyStopState, Scored
from cpr_trainer.trainer.state import DenseState

_TEXT_BYTES = 1 << 20
_DONE, _PUSHED, _SCORED_STEP, _UNMERGED, _TEXT = range(5)
_NUMBERS = 5
_NONE = -1

_Form = tuple[tuple[int, ...], DTypeLike]


@dataclass(frozen=True, slots=True)
class ReportedState:
    """What a trainer has told, or will, and what follows from no other number: see `TrainerReport`."""

    lost: Ranges = ()
    evaluation: HeldOutScores | None = None
    loss: float | None = None
    degraded_samples: int = 0
    early_stop_state: EarlyStopState = NO_EVALUATION


@dataclass(frozen=True, slots=True, eq=False)
class ResumePoint:
    """What the last process left. pushed: the last step that it pushed, None for none. standing: of the exchange."""

    pushed: int | None
    standing: Ints
    reported: ReportedState


class ResumeState:
    """Keeps a state, which lives in the file's memory from now on. shards: of the job."""

    def __init__(self, header: ResumeHeader, state: DenseState, shards: int) -> None:
        self._header = header
        self._state = state
        replica = state.replica
        self._in_place = replica.device.type == "cpu"
        shape = tuple(replica.live.shape)
        forms = [(shape, np.float32)] * 2 + _Record.forms(state, shards) * 2
        memory = _memory(header.file, forms)
        self._dense = [torch.from_numpy(memory.array(shape, np.float32)) for _ in range(2)]
        self._records = [_Record(memory, state, shards) for _ in range(2)]
        self._copy = self._record = 0
        self._words: tuple[ReportedState | None, bytes] = (None, b"")

    def reset(self, generation: int) -> None:
        """Keep nothing of what was kept before: the state begins a generation."""
        self._header.reset(generation)
        self._move_state_into_file()

    def restore(self) -> ResumePoint:
        """Let the state be what was kept; there is something."""
        self._copy, self._record = (self._header.valid - 1) % 2, (self._header.valid - 1) // 2
        left = self._records[self._record].load(self._state)
        self._state.replica.live.copy_(self._dense[self._copy])
        if self._in_place:
            self._move_state_into_file()
            self._copy = 0
            self._publish()
        return left

    @torch.no_grad()
    def begin_step(self) -> None:
        """The parameters are about to change."""
        if not self._in_place or self._header.valid <= NOTHING:
            return
        if self._copy == 1:  # what the last step has left was never complete
            self._header.valid = CHANGING
            return
        self._dense[1].copy_(self._dense[0])
        self._copy = 1
        self._publish()

    @torch.no_grad()
    def prepare(self, reported: ReportedState) -> None:
        """Copy what is to be valid next, but for what comes with `commit`."""
        if not self._in_place:
            self._dense[1 - self._copy].copy_(self._state.replica.live)
        if reported != self._words[0]:
            self._words = reported, to_json(reported).encode()
        self._records[1 - self._record].write(self._state, self._words[1])

    def commit(self, pushed: int | None, standing: Ints | None) -> None:
        """From here on the next process goes on from what was prepared; without a standing it does not go on at all.

        pushed, standing: see `ResumePoint`; that push is kept, and nothing of it was sent yet.
        """
        if standing is None:
            self._header.valid = CHANGING
            return
        self._record = 1 - self._record
        self._records[self._record].complete(pushed, standing)
        self._copy = 0 if self._in_place else 1 - self._copy
        self._publish()

    def _publish(self) -> None:
        self._header.valid = 1 + self._copy + 2 * self._record

    def _move_state_into_file(self) -> None:
        """Let the state live in the file, if it can."""
        if self._in_place:
            self._dense[0].copy_(self._state.replica.live)
            self._state.replica.move_to(self._dense[0])


class _Record:
    """All of a state but its parameters and what the optimizer keeps of them."""

    def __init__(self, memory: Memory, state: DenseState, shards: int) -> None:
        arrays = [memory.array(shape, dtype) for shape, dtype in self.forms(state, shards)]
        self._numbers: Ints = arrays[0]
        self._standing: Ints = arrays[1]
        self._text: NDArray[np.uint8] = arrays[2]
        self._random, self._sums, *rest = map(torch.from_numpy, arrays[3:])
        self._counters, self._buffers = rest[:3], rest[3:]

    @staticmethod
    def forms(state: DenseState, shards: int) -> list[_Form]:
        """Return the shapes and dtypes of its arrays."""
        counters = tuple(state.scores.scored().merged.shape)
        buffers = [((_bytes(buffer),), np.uint8) for buffer in state.replica.buffers().values()]
        return [
            ((_NUMBERS,), np.int64),
            ((shards, STATE_WIDTH), np.int64),
            ((_TEXT_BYTES,), np.uint8),
            (tuple(torch.get_rng_state().shape), np.uint8),
            ((3,), np.float64),
            *[(counters, np.int64)] * 3,
            *buffers,
        ]

    def write(self, state: DenseState, text: bytes) -> None:
        if len(text) > _TEXT_BYTES:
            raise OverflowError(f"{len(text)} bytes are to be kept, and there is room for {_TEXT_BYTES}")
        scored = state.scores.scored()
        self._counters[0].copy_(scored.merged)
        self._counters[1].copy_(scored.own)
        if scored.unmerged is not None:
            self._counters[2].copy_(scored.unmerged)
        self._sums[:2] = scored.loss_shares
        self._sums[2] = state.replica.optimizer_steps
        self._random.copy_(torch.get_rng_state())
        for place, buffer in zip(self._buffers, state.replica.buffers().values(), strict=True):
            place.copy_(buffer.detach().cpu().contiguous().reshape(-1).view(torch.uint8))
        self._text[: len(text)] = np.frombuffer(text, np.uint8)
        self._numbers[[_DONE, _SCORED_STEP, _TEXT]] = state.done, scored.step, len(text)
        self._numbers[_UNMERGED] = scored.unmerged is not None

    def complete(self, pushed: int | None, standing: Ints) -> None:
        self._numbers[_PUSHED] = _NONE if pushed is None else pushed
        self._standing[:] = standing

    def load(self, state: DenseState) -> ResumePoint:
        done, pushed, scored_step, unmerged, length = self._numbers.tolist()
        reported = from_json(ReportedState, self._text[:length].tobytes())
        merged, own, rest = (counters.clone() for counters in self._counters)
        shares = self._sums[:2].clone()
        state.scores.resume(Scored(merged, own, rest if unmerged else None, shares, scored_step), reported.loss)
        state.replica.optimizer_steps = float(self._sums[2])
        torch.set_rng_state(self._random.clone())
        with torch.no_grad():
            for place, buffer in zip(self._buffers, state.replica.buffers().values(), strict=True):
                buffer.copy_(place.clone().view(buffer.dtype).reshape(buffer.shape))
        state.done, state.lost, state.early_stop_state = done, reported.lost, reported.early_stop_state
        return ResumePoint(None if pushed == _NONE else pushed, self._standing.copy(), reported)


def _memory(file: ResumeFile, forms: list[_Form]) -> Memory:
    """Return memory for arrays of these forms: the last process' if there was one."""
    found = next(file.areas(Kind.DENSE), None)
    if found is None:
        size = SizeOf()
        for shape, dtype in forms:
            size.array(shape, dtype)
        found = file.grow(Kind.DENSE, size.bytes)
    return MappedMemory(found.mapping)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
