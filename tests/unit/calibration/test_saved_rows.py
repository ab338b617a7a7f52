from __future__ import annotations

import numpy as np
import pytest

from cpr_contract.model import SparseOptimizerSpec
from cpr_trainer.calibration import SavedRows, Slots
from cpr_trainer.tables.arena import Arena
from cpr_trainer.tables.optimizers import Assignment
from cpr_trainer.tables.segments import Segment

ROW_WISE, SGD = (Assignment((4,), (SparseOptimizerSpec(kind, 0.1),)) for kind in ("RowWiseAdagrad", "SGD"))


@pytest.mark.parametrize("slots", [slice(1, 3), np.array([2, 1])])
def test_rows_come_back_as_they_were_saved_last_with_the_updates_since(slots: Slots) -> None:
    arena = Arena([Segment(0, np.zeros((4, 2), np.float32), np.zeros((4, 1), np.float32))], ROW_WISE)
    saved = SavedRows(arena)
    for value in (1.0, 2.0, 3.0):
        arena.rows[:3], arena.state[:3] = value, 10 * value
        saved.note(np.array([0, 1, 2]))
        if value == 1.0:
            saved.save(np.array([1]))  # of single rows, as a priority save does
    assert saved.pending.tolist() == [3, 2, 3, 0]
    assert saved.restore(slots) == 2 + 3
    assert arena.rows[:, 0].tolist() == [3, 1, 0, 0], "row 1 from its own save, row 2 from the beginning"
    assert arena.state.tolist() == [[30], [10], [0], [0]]
    assert saved.pending.tolist() == [3, 0, 0, 0]
    assert saved.restore(slots) == 0


def test_without_optimizer_state_rows_are_all_there_is() -> None:
    arena = Arena([Segment(0, np.zeros((2, 2), np.float32), np.zeros((2, 0), np.float32))], SGD)
    saved = SavedRows(arena)
    arena.rows[:] += 1
    saved.note(np.array([0]))
    assert saved.restore(slice(0, 1)) == 1
    assert arena.rows.tolist() == [[0, 0], [1, 1]]
