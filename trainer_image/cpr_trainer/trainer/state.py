"""The dense state of one trainer: network, optimizer, evaluation, and what is lost of it.

Which step it belongs to is part of it: everything in a state counts the samples of steps 1 to `done`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from safetensors import torch as safetensors
from torch import Tensor

from cpr_contract.spec import JobSpec, samples_at
from cpr_trainer.evaluation import ProgressiveValidation
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.trainer.group.meeting import NO_STATE
from cpr_trainer.trainer.scores import Scores

Ranges = tuple[tuple[int, int], ...]

_EVALUATION, _LOST = "evaluation", "lost"


class DenseState:
    """Begins without a state: `done` is NO_STATE until one is begun, loaded or copied.

    `lost` are the sample ranges that this state did not train on, in this generation.
    """

    def __init__(self, job: JobSpec, total_samples: int) -> None:
        self.done = NO_STATE
        self.lost: Ranges = ()
        self.replica = DenseReplica(job.model, job.data.seed, precision=job.precision)
        self.scores = Scores(ProgressiveValidation(total_samples))
        self._batch_size = job.data.batch_size
        self._total_samples = total_samples
        self._alone = job.trainers == 1

    @property
    def samples(self) -> int:
        """Samples up to and with step `done`."""
        return samples_at(max(self.done, 0), self._batch_size, self._total_samples)

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Stand at step 0 with first values, or with the network of another job. Raises ModelError if that differs."""
        if tensors:
            self.replica.load(tensors)
        self.done = 0

    def load(self, tensors: Mapping[str, Tensor], done: int) -> None:
        """Go to a state that `tensors` returned after step `done`. Raises ModelError if it is of another network."""
        self.replica.load(tensors)
        self.scores.load(tensors[_EVALUATION])
        self.lost = tuple((int(start), int(stop)) for start, stop in tensors[_LOST])
        self.done = done

    def skip_to(self, done: int) -> None:
        """Go on after step `done`: the steps in between were trained by nobody who is still here."""
        before = self.samples
        self.done = done
        if self.samples > before:
            self.lost = (*self.lost, (before, self.samples))

    def tensors(self) -> dict[str, Tensor]:
        """Return copies on the CPU: those of the network, int64 counters, int64 [n, 2] lost ranges.

        Several trainers merge their scores at some steps, and what is not merged is no part of a state; a lone one need
        not ask anybody.
        """
        if self._alone:
            self.scores.merge(*self.scores.to_merge())
        return {
            **self.replica.tensors(),
            _EVALUATION: self.scores.merged(),
            _LOST: torch.tensor(self.lost, dtype=torch.int64).view(-1, 2),
        }

    def pack(self) -> bytes:
        """Return the state as safetensors bytes."""
        return safetensors.save(self.tensors())

    def unpack(self, data: bytes | bytearray, done: int) -> None:
        """Replace the state by one that `pack` returned after step `done`."""
        self.load(safetensors.load(bytes(data)), done)
