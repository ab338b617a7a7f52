"""The dense state of one trainer: network, optimizer, scores and lost sample ranges.

The step is part of the state: all of it counts the samples of steps 1 to `done`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from safetensors import torch as safetensors
from torch import Tensor

from cpr_contract.manifests import Ranges, SavedModel
from cpr_contract.spec import ByNameSpec, JobSpec, samples_at
from cpr_trainer.checkpoint.restore.by_name import DenseParts, map_dense
from cpr_trainer.evaluation import ProgressiveValidation
from cpr_trainer.model.dense_optimizer import state_kind
from cpr_trainer.model.replica import DenseReplica, another_network, buffers_in, saved_model
from cpr_trainer.trainer.allreduce.group import NO_STATE
from cpr_trainer.trainer.async_sync.averaging_state import AveragingState
from cpr_trainer.trainer.scores import EarlyStopState, Scores, SegmentBoundary

#: Names of tensors in a save.
_EVALUATION, _LOST, _STEPS, _EARLY_STOP = "evaluation", "lost", "steps", "verdict"
_BOUNDARY, _BOUNDARY_COUNTERS = "boundary", "boundary_counters"


class DenseState:
    """The dense state; `done` is NO_STATE until a state is begun, loaded or copied.

    `lost` are the sample ranges of this generation that the state was not trained on. Without lockstep `done` is the
    last step of rank `rank` alone, and `averaging` has those of the others. `early_stop_state` follows from the
    evaluations up to `done`, if they may end the job. `before_change` is called before the state is replaced as a
    whole. Progressive validation leaves out a part of `total_samples`, and none of data that arrives.
    """

    def __init__(self, job: JobSpec, total_samples: int, rank: int = 0) -> None:
        self.before_change: Callable[[], None] = lambda: None
        self.averaging: AveragingState | None = None
        self.done = NO_STATE
        self.lost: Ranges = ()
        self.early_stop_state = EarlyStopState()
        self._stops_early = job.evaluation is not None and job.evaluation.early_stop is not None
        self._model, self._seed = job.model, job.data.seed
        self.replica = DenseReplica(job.model, job.data.seed, job.device, job.precision)
        follows = job.data.follow is not None
        scored = 0 if follows else total_samples  # the end is known to some trainers before others
        validation = ProgressiveValidation.of(scored, job.model, self.replica.model)
        self.scores = Scores(validation, by_segment=follows)
        self._batch_size = job.data.batch_size
        self._total_samples = total_samples
        self._is_only_trainer = job.trainers == 1
        self._rank = rank
        if not job.lockstep:
            self.averaging = AveragingState(self.replica.parameters, rank, job.trainers)

    @property
    def done(self) -> int:
        """The last complete step."""
        return self._done

    @done.setter
    def done(self, step: int) -> None:
        self._done = step
        if self.averaging is not None:
            self.averaging.done = max(step, 0)

    @property
    def reached(self) -> int:
        """The last step that all trainers have completed: `done` in lockstep, else the last one reported here."""
        return self.done if self.averaging is None else min(self.averaging.held_steps())

    @property
    def farthest(self) -> int:
        """The last step that any trainer has completed, as reported here."""
        return max(self.done, 0 if self.averaging is None else max(self.averaging.steps))

    @property
    def samples(self) -> int:
        """Samples up to and including step `reached`."""
        return samples_at(max(self.reached, 0), self._batch_size, self._total_samples)

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Start at step 0 with initial values, or the network of another job. Raises ModelError if that differs."""
        self.before_change()
        if tensors:
            self.replica.load(tensors)
        self._set_steps((), 0)

    def begin_by_name(self, anchor: SavedModel, tensors: Mapping[str, Tensor], rules: ByNameSpec, key: str) -> None:
        """Start at step 0 with another job's values of the same names, and initial values for the others.

        Raises LayoutError if the rules require more.
        """
        self.before_change()
        spec, replica = self._model.dense_optimizer, self.replica
        old = DenseParts(anchor.dense_optimizer, anchor.parameters, buffers_in(tensors))
        new = DenseParts(state_kind(spec), replica.parameter_shapes(), replica.buffer_shapes())
        mapping = map_dense(old, new, rules, key)
        replica.take(tensors, mapping.pieces, mapping.buffers)
        self._set_steps((), 0)

    def saved_model(self) -> SavedModel:
        """Return the description in a save by which jobs of other models can use it."""
        return saved_model(self._model, self._seed, self.replica.parameter_shapes())

    def load(self, tensors: Mapping[str, Tensor], done: int) -> None:
        """Load a state that `tensors` returned after step `done`. Raises ModelError if it is of another network."""
        self.before_change()
        self.replica.load(tensors)
        boundary = None
        if _BOUNDARY in tensors:
            boundary = SegmentBoundary.of(tensors[_BOUNDARY], tensors[_BOUNDARY_COUNTERS].clone())
        try:
            self.scores.load(tensors[_EVALUATION], done, boundary)
            self.early_stop_state = EarlyStopState.of(tensors.get(_EARLY_STOP))
        except ValueError as error:
            raise another_network(str(error)) from error
        self.lost = tuple((int(start), int(stop)) for start, stop in tensors[_LOST])
        self._set_steps(tuple(tensors[_STEPS].tolist()) if self.averaging is not None else (), done)

    def skip_to(self, done: int) -> None:
        """Continue after step `done`, and mark the skipped steps as lost: no surviving trainer has them."""
        assert done >= self.done, f"skips from step {self.done} back to {done}"
        before = self.samples
        self.done = done
        if self.samples > before:
            self.lost = (*self.lost, (before, self.samples))

    def tensors(self) -> dict[str, Tensor]:
        """Return copies on the CPU: those of the network, int64 counters, int64 [n, 2] lost ranges.

        Also, without lockstep, int64 [W]: the last step of each rank in the network; if evaluations may end the job,
        float64 [4]: see `EarlyStopState`; and if the job follows its data, a `SegmentBoundary`. Unmerged scores are not
        part of a state; an only trainer merges first.
        """
        if self._is_only_trainer:
            self.scores.merge(*self.scores.to_merge())
        tensors = {
            **self.replica.tensors(),
            _EVALUATION: self.scores.merged(),
            _LOST: torch.tensor(self.lost, dtype=torch.int64).view(-1, 2),
        }
        if self._stops_early:
            tensors[_EARLY_STOP] = self.early_stop_state.tensor()
        if (boundary := self.scores.boundary) is not None:
            tensors |= {_BOUNDARY: boundary.numbers(), _BOUNDARY_COUNTERS: boundary.counters.clone()}
        if self.averaging is not None:
            tensors[_STEPS] = torch.tensor(self.averaging.held_steps(), dtype=torch.int64)
        return tensors

    def buffers_to_sum(self) -> tuple[Tensor, ...]:
        """Return the bytes of the buffers after the computed step, to be summed over all trainers in place.

        All take those of rank 0, as torch's DistributedDataParallel does; the others add zeros. Empty for a network
        without buffers, and if each trainer keeps its own.
        """
        if not self.replica.computed_buffers or self._is_only_trainer or self.averaging is not None:
            return ()
        buffers = self.replica.flatten_computed_buffers()
        if self._rank:
            buffers.zero_()
        return (buffers,)

    def pack(self) -> bytes:
        """Return the state as safetensors bytes."""
        return safetensors.save(self.tensors())

    def unpack(self, data: bytes | bytearray, done: int) -> None:
        """Replace the state by one that `pack` returned after step `done`."""
        self.load(safetensors.load(bytes(data)), done)

    def _set_steps(self, steps: tuple[int, ...], done: int) -> None:
        """Set the last step: `done`; without lockstep that of the own rank in `steps`."""
        self.done = done
        if self.averaging is not None:
            if len(steps) != self.averaging.trainers:
                # A new job, or a state of another number of trainers, which had all stopped at `done`.
                steps = (done,) * self.averaging.trainers
            self.averaging.begin(steps)
            self.done = self.averaging.done
