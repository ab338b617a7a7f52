"""The first dense state, if no trainer has one: the newest save of the generation that the roster allows."""

from __future__ import annotations

import logging
from collections.abc import Callable

from cpr_contract.reports import Problem, SaveRef, TrainerState
from cpr_contract.roster import AnchorRef, TrainerRoster
from cpr_trainer.checkpoint.anchor.retention import anchors_of_lineage
from cpr_trainer.checkpoint.format.documents import DamagedError
from cpr_trainer.checkpoint.restore.by_name import check_vocabularies, saved_model
from cpr_trainer.checkpoint.restore.dense_loader import RestoredDense, load_dense, newest_dense
from cpr_trainer.checkpoint.restore.lineage import Candidate
from cpr_trainer.trainer.control import PollInterrupts
from cpr_trainer.trainer.setup import Setup
from cpr_trainer.trainer.state import DenseState
from cpr_trainer.trainer.status import StatusPublisher
from cpr_trainer.trainer.store_retry import poll_and_sleep, retry_store_errors

_LOG = logging.getLogger(__name__)


class InitialStateLoader:
    """Loads the leader's first state. `roster` returns the newest roster: its floor may be lowered during a wait."""

    def __init__(self, setup: Setup, status: StatusPublisher, roster: Callable[[], TrainerRoster]) -> None:
        self._setup = setup
        self._status = status
        self._roster = roster

    def provide(self, state: DenseState, poll_interrupts: PollInterrupts) -> None:
        """Load the newest dense save that verifies and is not below the roster's floor, or wait for a new roster.

        Raises LayoutError or DamagedError for an unusable `restore_from`, ModelError for a save of another network, and
        what `poll_interrupts` raises.
        """
        restored = retry_store_errors(self._newest, self._status, poll_interrupts)
        if restored is None:
            anchor = self._roster().anchor
            problem = Problem(
                "AnchorDamaged",
                f"The dense state of {anchor.key if anchor else 'step 0'} does not verify.",
                "The operator goes back to the anchor before it; check the store for lost objects.",
            )
            self._status.update(problem=problem)
            while True:
                poll_and_sleep(poll_interrupts)
        if restored.samples < self._roster().dense_floor_samples:
            offer = SaveRef(restored.ref.key, restored.step, restored.samples) if restored.ref else None
            before = self._status.state
            self._status.update(state=TrainerState.BELOW_FLOOR, dense_save=offer)
            while restored.samples < self._roster().dense_floor_samples:
                poll_and_sleep(poll_interrupts)
            self._status.update(state=before)
        if restored.step:
            state.load(restored.tensors, restored.step)
            state.lost = restored.lost
            return
        manifest, ref, rules = restored.manifest, restored.ref, self._setup.job.snapshots.by_name
        if manifest is not None and ref is not None:
            check_vocabularies(manifest.model, self._setup.job.model, rules, self._setup.vocabularies, ref.key)
        if rules is None or manifest is None or ref is None:
            state.begin(restored.tensors)
        elif rules.dense == "Initialise":
            state.begin({})
        else:
            state.begin_by_name(saved_model(manifest, ref.key), restored.tensors, rules, ref.key)

    def known_anchors(self) -> tuple[AnchorRef, ...]:
        """Return the newest `snapshots.keep` anchors to which the job can go back, oldest first. Raises StoreError."""
        job, roster = self._setup.job, self._roster()
        generation, keep = roster.counters.generation, job.snapshots.keep
        return anchors_of_lineage(self._setup.store, job.job_uid, generation, roster.anchor, keep)

    def _newest(self) -> RestoredDense | None:
        """Return the newest save that verifies, None if none does. Raises StoreError, LayoutError, DamagedError."""
        for candidate in self._candidates():
            try:
                return load_dense(self._setup.store, candidate)
            except DamagedError:
                if candidate.kind == "RestoreFrom":
                    raise
                _LOG.warning("the dense save %s does not verify", candidate.key, exc_info=True)
        return None

    def _candidates(self) -> tuple[Candidate, ...]:
        roster = self._roster()
        return newest_dense(self._setup.store, self._setup.job, roster.counters.generation, roster.anchor)
