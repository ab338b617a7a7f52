from __future__ import annotations

import numpy as np
import pytest

from cpr_trainer.embedding.segments import Epochs


def slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def test_rows_changed_since_any_earlier_epoch_are_found() -> None:
    epochs = Epochs(6)
    epochs.note(slots(0, 1))
    first = epochs.end()
    epochs.note(slots(1, 2))
    second = epochs.end()
    epochs.note(slots(3))
    assert epochs.changed(0, second, 0, 6).tolist() == [0, 1, 2]
    assert epochs.changed(first, second, 0, 6).tolist() == [1, 2]
    assert epochs.changed(first, epochs.now, 2, 4).tolist() == [2, 3]
    assert epochs.changed(second, epochs.now, 0, 6).tolist() == [3]
    assert epochs.changed_rows == 4


def test_after_the_last_epoch_only_rows_ever_changed_are_found() -> None:
    epochs = Epochs(3)
    for _ in range(126):
        assert not epochs.used_up
        epochs.note(slots(1))
        epochs.end()
    assert epochs.used_up
    epochs.note(slots(2))
    with pytest.raises(OverflowError):
        epochs.end()
    epochs.fold()
    assert epochs.of.tolist() == [0, 1, 1]
    assert epochs.changed(0, epochs.end(), 0, 3).tolist() == [1, 2]


def test_a_chosen_row_waits_until_it_is_read_or_changes() -> None:
    epochs = Epochs(4)
    epochs.note(slots(0, 1, 2))
    epochs.choose(slots(0, 1, 3))
    assert epochs.chosen(slots(0, 1, 2, 3)).tolist() == [True, True, False, True]
    epochs.note(slots(1))
    epochs.release(slots(0))
    assert epochs.chosen(slots(0, 1, 2, 3)).tolist() == [False, False, False, True]
    epochs.release(slots(0, 1, 3))
    assert epochs.of.tolist() == [1, 1, 1, 0]
