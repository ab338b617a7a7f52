"""One shard's rows in one block of memory, with the state of the sparse optimizer beside them."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import assert_never

import numpy as np

from cpr_contract.spec import JobSpec, OptimizerSpec
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.placement import Placement
from cpr_trainer.tables.buffer import RowBuffer
from cpr_trainer.tables.capture import Capture, ChangedRows, ChosenRows, Members
from cpr_trainer.tables.epochs import Epochs
from cpr_trainer.tables.seeding import Seeding

_EPSILON = 1e-8
#: What pushes may log during a save: three parts in a hundred of the rows, but enough for some large pushes.
_LOG_SHARE = 0.03
_SMALLEST_LOG_BYTES = 8 << 20


class Arena:
    """rows: float32 [n, D]. accumulator: float32 [n] of row-wise Adagrad, None with SGD.

    One thread serves: it alone applies gradients and begins and ends captures. Another may read the capture meanwhile.
    """

    def __init__(self, rows: Floats, accumulator: Floats | None, optimizer: OptimizerSpec) -> None:
        self.rows = rows
        self.accumulator = accumulator
        self.optimizer = optimizer
        self.epochs = Epochs(len(rows))
        self._lock = Lock()
        self._log: RowBuffer | None = None
        self._capture: Capture | None = None

    @classmethod
    def empty(cls, job: JobSpec, size: int) -> Arena:
        """Return an arena of `size` rows, all zero."""
        adagrad = job.model.sparse_optimizer.kind == "RowWiseAdagrad"
        rows = np.zeros((size, job.model.embedding_dim), np.float32)
        return cls(rows, np.zeros(size, np.float32) if adagrad else None, job.model.sparse_optimizer)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row with its state."""
        return 4 * (int(self.rows.shape[1]) + (self.accumulator is not None))

    def seed(self, placement: Placement, shard: int, seeding: Seeding) -> None:
        """Give every row that never changed its first value, and its accumulator zero."""
        if self.epochs.of.all():
            return
        for chunk in placement.rows_of(shard):
            end = chunk.first_slot + len(chunk.rows)
            fresh = np.flatnonzero(self.epochs.of[chunk.first_slot : end] == 0)
            slots = fresh + chunk.first_slot
            self.rows[slots] = seeding.values(chunk.tables[fresh], chunk.rows[fresh])
            if self.accumulator is not None:
                self.accumulator[slots] = 0.0

    def put(self, slots: Ints, rows: Floats, state: Floats | None, at: Ints, epoch: int) -> None:
        """Load some of rows [m, D] and state [m], those at `at`, into `slots`, as changed in `epoch`."""
        self.rows[slots] = rows[at]
        if self.accumulator is not None and state is not None:
            self.accumulator[slots] = state[at]
        self.epochs.of[slots] = epoch

    def gather(self, slots: Ints) -> Floats:
        """Return the rows in `slots` (int64 [k]), float32 [k, D], a copy."""
        return self.rows.take(slots, axis=0)

    def apply(self, slots: Ints, gradients: Floats) -> bool:
        """Take one optimizer step. slots: int64 [k], all different. gradients: float32 [k, D].

        False if a capture has yet to read what these rows hold, and no room to keep it: nothing changed, try again.
        """
        with self._lock:
            if self._capture is not None and not self._capture.preserve(slots):
                return False
            self.epochs.note(slots)
            self._step(slots, gradients)
            return True

    def capture_changes(self, since: int) -> Capture:
        """Hold the rows that changed after epoch `since` as they are now, and end the epoch; 0 for all that ever did.

        No row is copied now. A capture under way is ended. Raises OverflowError when all epochs are used up.
        """
        return self._begin(lambda: ChangedRows(self.epochs, since))

    def capture_rows(self, slots: Ints) -> Capture:
        """Hold the rows in `slots` (ascending, distinct) as they are now. A capture under way is ended."""
        return self._begin(lambda: ChosenRows(self.epochs, slots))

    def forget_epochs(self) -> None:
        """Count epochs from the start; see `Epochs.fold`. A capture under way is ended."""
        if self._capture is not None:
            self._capture.end()
        with self._lock:
            self.epochs.fold()

    def _begin(self, members: Callable[[], Members]) -> Capture:
        if self._capture is not None:
            self._capture.end()
        if self._log is None:
            self._log = RowBuffer.like(self.rows, self.accumulator, self._log_rows())
        with self._lock:
            held = members()
            self._capture = Capture(self.rows, self.accumulator, self.epochs, held, log=self._log, lock=self._lock)
            return self._capture

    def _log_rows(self) -> int:
        return min(len(self.rows), max(int(_LOG_SHARE * len(self.rows)), _SMALLEST_LOG_BYTES // self.row_bytes))

    def _step(self, slots: Ints, gradients: Floats) -> None:
        match self.optimizer.kind:
            case "SGD":
                self._add(slots, gradients * -self.optimizer.learning_rate)
            case "RowWiseAdagrad":
                self._step_adagrad(slots, gradients)
            case "Adagrad":
                raise ValueError("Adagrad with an accumulator per value is for dense parameters")
            case _:
                assert_never(self.optimizer.kind)

    def _step_adagrad(self, slots: Ints, gradients: Floats) -> None:
        """Row-wise Adagrad: acc += mean(g^2) over the row; row -= lr g / (sqrt(acc) + eps)."""
        assert self.accumulator is not None  # noqa: S101 -- `empty` gives row-wise Adagrad one
        sums = self.accumulator.take(slots)
        sums += np.einsum("kd,kd->k", gradients, gradients) / gradients.shape[1]
        self.accumulator[slots] = sums
        steps = np.sqrt(sums)
        steps += _EPSILON
        np.divide(-self.optimizer.learning_rate, steps, out=steps)
        self._add(slots, gradients * steps[:, np.newaxis])

    def _add(self, slots: Ints, changes: Floats) -> None:
        """Add to rows, all different; `changes` is used up. Several times as fast as to add where they are."""
        changes += self.rows.take(slots, axis=0)
        self.rows[slots] = changes
