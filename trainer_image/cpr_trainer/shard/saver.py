"""Writes copies of a shard's rows to the store, on a thread of its own, until the store has them."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from torch import Tensor

from cpr_contract.exits import Problem
from cpr_contract.reports import SaveRef
from cpr_trainer.errors import TrainerError
from cpr_trainer.runtime import backoff, problem_of
from cpr_trainer.snapshot import ShardMeta, save_shard
from cpr_trainer.store import Store

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """A copy of the rows and what its manifest will say. rows: float32 [n, D]. state: float32 [n], or None."""

    meta: ShardMeta
    rows: Tensor
    state: Tensor | None


@dataclass(frozen=True, slots=True)
class Committed:
    """A save is in the store, complete."""

    generation: int
    save: SaveRef
    save_s: float


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """An attempt failed and will be repeated."""

    problem: Problem


class Saver:
    """Saves one copy at a time; a newer copy replaces one that waits or is being retried.

    `tell` hears of every attempt, on the saver's thread.
    """

    def __init__(self, store: Store, tell: Callable[[Committed | SaveFailed], None], rng: random.Random) -> None:
        self._store = store
        self._tell = tell
        self._rng = rng
        self._changed = threading.Condition()
        self._next: Copy | None = None
        self._busy = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="saver", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether everything that was submitted is committed, replaced or discarded."""
        with self._changed:
            return self._next is None and not self._busy

    def submit(self, copy: Copy) -> None:
        """Save this copy as soon as the store lets us."""
        with self._changed:
            self._next = copy
            self._changed.notify_all()

    def discard(self) -> None:
        """Forget a copy that is not committed yet, but for an attempt under way."""
        with self._changed:
            self._next = None
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread after the attempt under way."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._next is not None)
                if self._closing:
                    return
                self._busy = True
            self._save_newest()
            with self._changed:
                self._busy = False

    def _save_newest(self) -> None:
        """Try until a copy is committed or none is left."""
        delays = backoff(self._rng)
        while (copy := self._next) is not None and not self._closing:
            started = monotonic()
            try:
                saved = save_shard(self._store, copy.meta, copy.rows, copy.state)
            except TrainerError as error:
                _LOG.warning("save of step %d: %s", copy.meta.step, error)
                self._tell(SaveFailed(problem_of(error)))
                self._pause(copy, next(delays))
                continue
            ref = SaveRef(saved.ref.key, copy.meta.step, copy.meta.samples)
            self._tell(Committed(copy.meta.generation, ref, monotonic() - started))
            with self._changed:
                if self._next is copy:
                    self._next = None

    def _pause(self, failed: Copy, delay_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._next is not failed, delay_s)
