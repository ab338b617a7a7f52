"""Retention: the anchors that stay, and the time of the leader's sweeps of unneeded saves."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from itertools import islice
from time import monotonic

from cpr_contract.manifests import ShardManifest
from cpr_contract.reports import Problem
from cpr_contract.roster import AnchorRef
from cpr_trainer.checkpoint.anchor.pruning import GRACE_S, Pruner
from cpr_trainer.checkpoint.format.documents import DamagedError
from cpr_trainer.checkpoint.format.keys import restore_records_in, shard_folder
from cpr_trainer.checkpoint.format.records import find_anchors, read_restore_record
from cpr_trainer.runtime import backoff, problem_of
from cpr_trainer.store import Store, StoreError

_LOG = logging.getLogger(__name__)

#: The pause after a failed sweep: each may list all objects of the job.
_FIRST_S, _LONGEST_S = 1.0, 60.0

#: Anchors that the job's status holds stay this long without a newer one in it, for example without an operator.
_UNRECORDED_S = 3600.0

#: The pause between two sweeps of a store that stays full.
_FULL_PAUSE_S = 5.0


def anchors_of_lineage(
    store: Store, job_uid: str, generation: int, start: AnchorRef | None, keep: int
) -> tuple[AnchorRef, ...]:
    """Return the newest `keep` anchors to which a generation can go back, oldest first. Raises StoreError.

    start: the anchor at which it began; None for step 0. The rule is that of `pruning.on_lineage`. This reads no more
    generations than it needs: those between `start` and this one have no anchor to go back to.
    """
    found = [*islice(find_anchors(store, job_uid, generation), keep)]
    last_step = start.step if start else 0
    for number in range(start.generation if start else 0, 0, -1):
        if len(found) == keep or not last_step:
            break
        own = tuple(islice(find_anchors(store, job_uid, number, last_step), keep - len(found)))
        found += own
        began = _first_step(store, job_uid, number)
        if began is None and own:
            break  # its beginning is unknown, and with it how far earlier generations count
        last_step = last_step if began is None else min(last_step, began)
    return tuple(reversed(found))


def _first_step(store: Store, job_uid: str, generation: int) -> int | None:
    """Return the step at which a generation began, by its first shard; None if it never served, or is unreadable."""
    keys = (entry.key for entry in store.list(shard_folder(job_uid, generation, 0)))
    records = (read_restore_record(store, key) for _, key in sorted(restore_records_in(keys).items()))
    return next((record.step for record in records if record is not None and record.parent is None), None)


class Retention:
    """Sweeps by `pruner`. `problem` is the error of the last sweep, None if it succeeded. For one thread.

    A sweep is due after each anchor, later for saves that were too young, and at once on a full store: that takes no
    further anchor. `anchors` are those that stay at first, oldest first. `recorded` returns the key of the newest
    anchor in the job's status. The operator cannot roll back to a later one, so a sweep that would delete it waits, at
    most for an hour. `best_step` returns the step of the best evaluation as of an anchor, 0 without one: the job may go
    back there. It may raise StoreError. `oldest_step` is that of the oldest anchor to which the job can go back, as of
    the last sweep; 0 before the first.
    """

    def __init__(
        self,
        pruner: Pruner,
        rng: random.Random,
        recorded: Callable[[], str],
        best_step: Callable[[AnchorRef], int],
        anchors: tuple[AnchorRef, ...] = (),
    ) -> None:
        self.problem: Problem | None = None
        self.oldest_step = 0
        self._pruner = pruner
        self._rng = rng
        self._recorded = recorded
        self._best_step = best_step
        self._best_steps: dict[str, int] = {}
        self._anchors = anchors
        self._due_s = self._full_due_s = self._since_s = monotonic()
        self._swept = False
        self._delays = backoff(self._rng, first_s=_FIRST_S, cap_s=_LONGEST_S)

    def keep(self, anchors: tuple[AnchorRef, ...], shards: Iterable[ShardManifest], best_step: int = 0) -> None:
        """Schedule a sweep that keeps these anchors, oldest first; `shards` are the saves of the last one.

        best_step: that of the last one.
        """
        now_s = monotonic()
        if self._swept or not self._anchors:
            self._swept, self._since_s = False, now_s
        if self.problem is None:
            self._due_s = now_s
        self._anchors = anchors
        self._best_steps[anchors[-1].key] = best_step
        self._pruner.note(anchors[-1], shards)

    def tick(self, *, full: bool = False) -> None:
        """Sweep if that is due, or the store is full, and the status holds an anchor that stays."""
        now_s = monotonic()
        store_is_full = full and now_s >= self._full_due_s
        if not self._anchors or not (store_is_full or now_s >= self._due_s):
            return
        recorded = self._recorded() in {anchor.key for anchor in self._anchors}
        if not recorded and (self._swept or now_s - self._since_s < _UNRECORDED_S):
            return
        try:
            retained = self._retained()
            young = self._pruner.prune(self._anchors, retained, full=store_is_full)
        except (StoreError, DamagedError) as error:
            if self.problem is None:
                _LOG.warning("old saves are not deleted: %s", error)
            self.problem = problem_of(error)
            self._due_s = self._full_due_s = monotonic() + next(self._delays)
        else:
            self.problem, self._swept = None, True
            self.oldest_step = min((*(anchor.step for anchor in self._anchors), *retained))
            self._delays = backoff(self._rng, first_s=_FIRST_S, cap_s=_LONGEST_S)
            self._due_s = monotonic() + GRACE_S if young else float("inf")
            if store_is_full:
                self._full_due_s = monotonic() + _FULL_PAUSE_S

    def _retained(self) -> frozenset[int]:
        """Return the steps of the best evaluations as of the anchors that stay. Raises StoreError."""
        steps = {anchor.key: self._best_steps.get(anchor.key) for anchor in self._anchors}
        unknown = [anchor for anchor in self._anchors if steps[anchor.key] is None]
        self._best_steps = {key: step for key, step in steps.items() if step is not None}
        for anchor in unknown:
            self._best_steps[anchor.key] = self._best_step(anchor)
        return frozenset(self._best_steps.values()) - {0}
