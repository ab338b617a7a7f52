"""The constants of a trainer process: its job, rank, data and store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from cpr_contract import CONTRACT_VERSION
from cpr_contract.manifests import DenseManifest, dense_prefix
from cpr_contract.reports import Problem
from cpr_contract.roster import TrainerRoster
from cpr_contract.spec import MEASURED, OPEN_TOTAL, EarlyStopSpec, JobSpec, samples_at
from cpr_trainer.checkpoint.anchor.committer import DenseCopy
from cpr_trainer.checkpoint.restore.by_name import with_vocabularies
from cpr_trainer.data.dataset import Dataset
from cpr_trainer.data.files import Index
from cpr_trainer.data.open import (
    Find,
    evaluation_rows,
    files_of,
    list_files,
    log_problem,
    open_dataset,
    open_evaluation,
)
from cpr_trainer.data.order import BatchOrder, Order
from cpr_trainer.embedding.placement import Placement, layout_hash
from cpr_trainer.errors import DataError
from cpr_trainer.model.entrypoint import build_network
from cpr_trainer.runtime import BadSpecError, Environment, Trace
from cpr_trainer.store import Store, Uris
from cpr_trainer.trainer.control import PollInterrupts
from cpr_trainer.trainer.followed_data import DataLooks, FollowedData, check_follow
from cpr_trainer.trainer.frozen_inputs import FrozenInputs
from cpr_trainer.trainer.scores import next_evaluation
from cpr_trainer.trainer.state import DenseState
from cpr_trainer.trainer.worker_tuning import WorkerChoice, choose_workers
from cprjob_serving.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """The constants of one trainer process. `layout` is the hash that a save must have to be restored.

    `inputs` are the frozen inputs of training. `evaluation_data` has the samples of evaluations, and
    `evaluation_inputs` their files, if they are separate ones. `workers` is the same for all trainers of the job.
    `followed` has the pins of data that arrives; else the order of all samples is fixed. `known_order` returns what is
    known of it.
    """

    job: JobSpec
    rank: int
    incarnation: int
    store: Store
    files: Uris
    dataset: Dataset
    known_order: Callable[[], Order]
    followed: FollowedData | None
    placement: Placement
    layout: str
    trace: Trace
    inputs: FrozenInputs
    evaluation_data: Dataset
    evaluation_inputs: FrozenInputs
    vocabularies: Mapping[str, Vocabulary]
    workers: WorkerChoice

    @classmethod
    def read(
        cls,
        environment: Environment,
        roster: TrainerRoster,
        store: Store,
        frozen: tuple[FrozenInputs, FrozenInputs],
        warn: Callable[[Problem], None] = log_problem,
    ) -> Setup:
        """Open the data of training and of evaluations. frozen: the inputs of both.

        For `warn` see `open_dataset`. Raises ModelError, DataError, BadSpecError, DamagedError, StoreError, and what
        `frozen` raise.
        """
        job, (inputs, evaluation_inputs) = environment.job, frozen
        # Cheap, so an error is found before the data is indexed.
        build_network(job.model, job.data.seed, job.precision, device=job.device)
        try:
            placement = Placement.of(job.model, job.shards)
        except ValueError as error:
            raise BadSpecError(
                f"The tables cannot be placed: {error}.", "Use fewer shards or larger tables."
            ) from error
        files = files_of(job, environment.store_access, environment.data_access)
        list_present = partial(list_files, job.data, files)
        followed = None
        if job.data.follow is not None:
            check_follow(job)
            followed = FollowedData(job.data, job.job_uid, store)

        def freeze(find: Find) -> Sequence[Index]:
            if followed is None:
                return inputs.freeze_data(store, list_present, find)
            return inputs.await_first_pin(followed, DataLooks.of(job, store, files))

        dataset = open_dataset(
            job.data,
            job.model,
            files,
            freeze,
            vocabularies=lambda find: inputs.freeze_vocabularies(store, find),
            warn=warn,
        )
        fixed_order = BatchOrder.of(job.data, dataset.layout) if followed is None else None

        def known_order() -> Order:
            order = fixed_order if followed is None else followed.order
            assert order is not None, "the order is fixed, or follows from pins"
            return order

        def choose(poll_interrupts: PollInterrupts) -> WorkerChoice:
            found = WorkerChoice(job.workers, "stated")
            if job.workers == MEASURED:
                found = choose_workers(job, dataset, known_order(), placement, poll_interrupts)
            return replace(found, threads=torch.get_num_threads())

        workers = inputs.freeze_workers(store, choose)
        evaluation_data, spec = dataset, job.evaluation
        if spec is not None and (spec.uri is not None or spec.group_by is not None):
            own = inputs if spec.uri is None else evaluation_inputs
            evaluation_data = open_evaluation(
                job, files, lambda find: own.freeze_data(store, list_present, find), lambda _: inputs.vocabularies
            )
        if spec is not None and spec.every and not evaluation_rows(job, evaluation_data.layout.rows):
            raise DataError(
                f"spec.evaluation has no row to score: data.holdOut {job.data.hold_out:g} of "
                f"{evaluation_data.layout.rows} rows is less than one.",
                "Raise spec.data.holdOut, or set evaluation.everySamples to 0.",
            )
        return cls(
            job=job,
            rank=roster.index,
            incarnation=roster.incarnation,
            store=store,
            files=files,
            dataset=dataset,
            known_order=known_order,
            followed=followed,
            placement=placement,
            layout=layout_hash(job.model),
            trace=Trace(environment.step_trace),
            inputs=inputs,
            evaluation_data=evaluation_data,
            evaluation_inputs=evaluation_inputs,
            vocabularies=inputs.vocabularies,
            workers=workers,
        )

    @property
    def order(self) -> Order:
        """The order of samples, as far as it is known."""
        return self.known_order()

    @property
    def last_step(self) -> int:
        """The last step of the job, or the last known one while its data has no end."""
        return self.order.steps

    @property
    def data_has_end(self) -> bool:
        """True if `last_step` is the last step of the job."""
        return self.order.total_samples != OPEN_TOTAL

    @property
    def early_stop(self) -> EarlyStopSpec | None:
        """The condition that ends the job early, if there is one."""
        return None if self.job.evaluation is None else self.job.evaluation.early_stop

    def next_barrier(self, step: int) -> int:
        """Return the next step after `step` at which all trainers wait, for a decisive evaluation or at the end.

        The model is saved there, too, so that the best one is an anchor.
        """
        spec = self.job.evaluation
        if spec is None or spec.early_stop is None:
            return self.last_step
        return next_evaluation(step, spec.every, self.order.batch_size, self.last_step)

    def samples_at(self, step: int) -> int:
        """Samples of the steps up to and including `step`."""
        return samples_at(step, self.order.batch_size, self.order.total_samples)

    def batch_size(self, step: int) -> int:
        """Samples of one step, of all trainers together, without void ones."""
        return self.order.real_samples(step)

    def dense_copy(self, state: DenseState, roster: TrainerRoster, cut_step: int | None = None) -> DenseCopy:
        """Copy the dense state for a save in the roster's group and generation, at a cut or the step all have reached.

        Without lockstep all may have gone beyond a cut meanwhile.
        """
        step = state.reached if cut_step is None else cut_step
        meta = DenseManifest(
            contract=CONTRACT_VERSION,
            job_uid=self.job.job_uid,
            generation=roster.counters.generation,
            group=roster.counters.group,
            step=step,
            samples=self.samples_at(step),
            total_samples=self.order.total_samples,
            layout=self.layout,
            parts=(),
            dense_lost=state.lost,
            ids=self.job.model.table_ids,
            model=with_vocabularies(state.saved_model(), self.vocabularies),
            best_step=state.early_stop_state.best_step,
        )
        return DenseCopy(meta, state.tensors())


def is_new_job(store: Store, roster: TrainerRoster, job_uid: str) -> bool:
    """Return whether this process leads a job that has no dense save yet. Raises StoreError.

    For the first leader the answer is known without the store, which may be unable to list.
    """
    if roster.leader != roster.index or roster.counters.generation > 1:
        return False
    return roster.incarnation == 1 or not store.list(f"{dense_prefix(job_uid, 1)}/")
