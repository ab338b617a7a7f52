from __future__ import annotations

import numpy as np
import pytest

from cpr_trainer.embedding.priority.strategies import SsuTracker
from cpr_trainer.embedding.priority.tracker import Population

ROWS, QUOTA = 10_000, 400


def tracker(*, rows: int = ROWS, quota: int = QUOTA, small: int = 0, seed: int = 0) -> SsuTracker:
    return SsuTracker(Population(rows, np.arange(small)), quota, np.random.default_rng(seed))


def chosen(ssu: SsuTracker, count: int = QUOTA) -> list[int]:
    claim = ssu.choose(count)
    assert claim.slots is not None
    slots: list[int] = claim.slots.tolist()
    return slots


def test_a_full_list_holds_different_rows_that_were_recorded_and_no_more_than_fit() -> None:
    ssu = tracker()
    rng = np.random.default_rng(1)
    recorded: set[int] = set()
    for _ in range(50):
        push = np.sort(rng.choice(ROWS, 500, replace=False))
        ssu.note(push)
        recorded |= set(push[::2].tolist())
    slots = chosen(ssu)
    assert len(recorded) > 10 * QUOTA
    assert set(slots) <= recorded
    assert len(set(slots)) == len(slots)
    assert 0.9 * QUOTA < len(slots) <= QUOTA


def test_evicted_entry_is_random() -> None:
    # Ten times as many rows as fit, each once: a survivor may have come at any time, though late ones are more likely.
    ages = []
    for seed in range(20):
        ssu = tracker(seed=seed)
        for first in range(0, 10 * 2 * QUOTA, 200):
            ssu.note(np.arange(first, first + 200) % ROWS)
        ages += [slot // (2 * QUOTA) for slot in chosen(ssu)]
    survivors = np.bincount(ages, minlength=10)
    assert survivors[9] > survivors[7] > survivors[5] > 0


def test_rows_that_are_used_often_are_in_the_list() -> None:
    ssu = tracker()
    rng = np.random.default_rng(2)
    hot = np.arange(0, ROWS, 100)
    for _ in range(100):
        cold = rng.choice(np.setdiff1d(np.arange(ROWS), hot), 101, replace=False)
        ssu.note(rng.permutation(np.concatenate((hot, cold))))
    assert np.isin(hot, chosen(ssu)).mean() > 0.8  # of all rows at most 0.04 are


def test_small_tables_take_no_entries_from_the_others() -> None:
    ssu = tracker(small=300)
    for first in range(0, 300, 50):
        ssu.note(np.arange(first, first + 50))
    for first in range(1000, 1000 + 2 * QUOTA, 50):
        ssu.note(np.arange(first, first + 50))
    slots = chosen(ssu)
    assert slots[:300] == list(range(300))
    assert len(slots) - 300 > 0.8 * QUOTA


def test_a_row_evicted_between_choice_and_mark_takes_nothing_with_it() -> None:
    ssu = tracker(quota=8)  # one bucket
    for slot in range(100, 116):
        ssu.note(np.array([slot]))
    claim = ssu.choose(8)
    for slot in range(200, 216):
        ssu.note(np.array([slot]))
    late = {slot for slot in chosen(ssu) if slot >= 200}
    assert late
    ssu.mark(claim)
    ssu.forget(claim)
    assert set(chosen(ssu)) == late


def test_more_rows_than_entries_can_name_are_refused() -> None:
    with pytest.raises(ValueError, match="more shards"):
        tracker(rows=2**30)
