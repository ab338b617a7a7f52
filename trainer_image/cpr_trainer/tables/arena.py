"""One shard's rows in one block of memory, with the state of the sparse optimizer beside them."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

import numpy as np

from cpr_contract.spec import JobSpec, SparseOptimizerSpec
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.placement import Placement
from cpr_trainer.tables.assignment import Assignment
from cpr_trainer.tables.buffer import RowBuffer
from cpr_trainer.tables.capture import Capture, ChangedRows, ChosenRows, Members
from cpr_trainer.tables.epochs import Epochs
from cpr_trainer.tables.optimizers import changes_of
from cpr_trainer.tables.seeding import Seeding

#: What pushes may log during a save: three parts in a hundred of the rows, but enough for some large pushes.
_LOG_SHARE = 0.03
_SMALLEST_LOG_BYTES = 8 << 20


class Arena:
    """rows: float32 [n, D]. state: float32 [n, W], what their optimizers keep of them; W may be 0.

    One thread serves: it alone applies gradients and begins and ends captures. Another may read the capture meanwhile.
    """

    def __init__(self, rows: Floats, state: Floats, optimizers: Assignment) -> None:
        self.rows = rows
        self.state = state
        self.optimizers = optimizers
        self.epochs = Epochs(len(rows))
        self._lock = Lock()
        self._log: RowBuffer | None = None
        self._capture: Capture | None = None

    @classmethod
    def empty(cls, job: JobSpec, size: int) -> Arena:
        """Return an arena of `size` rows, all zero."""
        dim, optimizers = job.model.embedding_dim, Assignment.of(job.model)
        state = np.zeros((size, optimizers.state_width(dim)), np.float32)
        return cls(np.zeros((size, dim), np.float32), state, optimizers)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row with its state."""
        return 4 * int(self.rows.shape[1] + self.state.shape[1])

    def seed(self, placement: Placement, shard: int, seeding: Seeding) -> None:
        """Give every row that never changed its first value, and the state zero."""
        if self.epochs.of.all():
            return
        for chunk in placement.rows_of(shard):
            end = chunk.first_slot + len(chunk.rows)
            fresh = np.flatnonzero(self.epochs.of[chunk.first_slot : end] == 0)
            slots = fresh + chunk.first_slot
            self.rows[slots] = seeding.values(chunk.tables[fresh], chunk.rows[fresh])
            self.state[slots] = 0.0

    def put(self, slots: Ints, rows: Floats, state: Floats, at: Ints, epoch: int) -> None:
        """Load some of rows [m, D] and state [m, W], those at `at`, into `slots`, as changed in `epoch`."""
        self.rows[slots] = rows[at]
        self.state[slots] = state[at]
        self.epochs.of[slots] = epoch

    def gather(self, slots: Ints) -> Floats:
        """Return the rows in `slots` (int64 [k]), float32 [k, D], a copy."""
        return self.rows.take(slots, axis=0)

    def apply(self, slots: Ints, numbers: Ints, gradients: Floats, step: int) -> bool:
        """Take one optimizer step, the job's `step` (from 1). gradients: float32 [k, D].

        slots: int64 [k], all different. numbers: int64 [k], the numbers of the rows in them (see `Placement`).

        False if a capture has yet to read what these rows hold, and no room to keep it: nothing changed, try again.
        """
        with self._lock:
            if self._capture is not None and not self._capture.preserve(slots):
                return False
            self.epochs.note(slots)
            for optimizer, at in self.optimizers.parts(numbers):
                if at is None:
                    self._step(optimizer, slots, gradients, step)
                else:
                    self._step(optimizer, slots.take(at), gradients.take(at, axis=0), step)
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
            self._log = RowBuffer.like(self.rows, self.state, self._log_rows())
        with self._lock:
            held = members()
            self._capture = Capture(self.rows, self.state, self.epochs, held, log=self._log, lock=self._lock)
            return self._capture

    def _log_rows(self) -> int:
        return min(len(self.rows), max(int(_LOG_SHARE * len(self.rows)), _SMALLEST_LOG_BYTES // self.row_bytes))

    def _step(self, optimizer: SparseOptimizerSpec, slots: Ints, gradients: Floats, step: int) -> None:
        """Change rows, all different. To read, add and put back is several times as fast as to add where they are."""
        state = self.state.take(slots, axis=0)
        changes = changes_of(optimizer, state, gradients, step)
        self.state[slots] = state
        changes += self.rows.take(slots, axis=0)
        self.rows[slots] = changes
