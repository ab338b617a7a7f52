"""Decisions of a shard: admission of pushes, and losses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_contract.manifests import RowUpdates
from cpr_trainer.exchange.frames import Operation
from cpr_trainer.shard.service import answer_for
from cpr_trainer.shard.state import (
    MAX_PARTIAL_BATCHES,
    Admission,
    Cuts,
    Losses,
    admit_push,
    after_push,
    merge,
    order_of,
)

ORDER = order_of(total_samples=95, batch_size=10)


@pytest.mark.parametrize(
    ("theirs", "ours", "answer"),
    [
        (2, 2, Operation.PONG),
        (1, 2, Operation.STALE),
        (3, 2, Operation.NOT_READY),
        (2, None, Operation.NOT_READY),
    ],
)
def test_serving_follows_the_generation_of_the_roster(theirs: int, ours: int | None, answer: Operation) -> None:
    assert answer_for(theirs, ours) is answer


@pytest.mark.parametrize(
    ("step", "pending", "admission"),
    [
        (5, 0, Admission.APPLY),
        (4, 0, Admission.DROP),
        (1, 0, Admission.DROP),
        (9, 0, Admission.APPLY),  # after a gap: a predecessor had acknowledged what is missing
        (5, 4, Admission.HOLD),
        (5, 5, Admission.APPLY),
        (4, 3, Admission.DROP),
        (7, 6, Admission.APPLY),  # skips the cut at 6: holding it would hold it forever
    ],
)
def test_admission_of_a_push_after_step_4(step: int, pending: int, admission: Admission) -> None:
    assert admit_push(step, 4, Cuts(pending), resumed=True) is admission


def test_steps_that_all_ranks_miss_are_whole_batches() -> None:
    losses = Losses.restored(((0, 10),), 2)
    losses = losses.applied(0, 3, 7, ORDER)
    assert losses.resumed_samples(ORDER) is None
    assert losses.lost == ((0, 10),), "not before all ranks have pushed"
    assert losses.so_far(ORDER) == ((0, 10), (30, 35), (40, 45), (50, 55))
    losses = losses.applied(1, 3, 7, ORDER)
    assert losses.lost == ((0, 10), (30, 60))
    assert losses.resumed_samples(ORDER) == 60
    assert losses.applied(0, 7, 8, ORDER) is losses


def test_account_takes_a_bounded_number_of_parts_of_batches_and_then_whole_ones() -> None:
    """Rank 1 comes back later: what it misses alone counts by itself, up to a limit."""
    order = order_of(10_000, 10)

    def lost(late: int) -> tuple[tuple[int, int], ...]:
        return Losses.restored((), 2).applied(0, 0, 11, order).applied(1, 0, 11 + late, order).lost

    alone = tuple((start, start + 5) for start in range(105, 105 + 10 * MAX_PARTIAL_BATCHES, 10))
    assert lost(MAX_PARTIAL_BATCHES) == ((0, 100), *alone)
    assert lost(MAX_PARTIAL_BATCHES + 1) == ((0, 100 + 10 * (MAX_PARTIAL_BATCHES + 1)),)


def test_a_gap_after_the_restore_is_lost_at_once() -> None:
    losses = Losses.restored((), 1).applied(0, 0, 1, ORDER)
    assert losses.applied(0, 1, 3, ORDER).lost == ((10, 20),)


def test_the_last_batch_may_be_short() -> None:
    assert Losses.restored((), 1).applied(0, 8, 10, ORDER).lost == ((80, 90),)
    with pytest.raises(ValueError, match=r"outside 1\.\.10"):
        Losses.restored((), 1).applied(0, 9, 12, ORDER)


@settings(deadline=None)
@given(st.data(), st.integers(1, 4))
def test_ranges_are_the_samples_of_all_missing_steps(data: st.DataObject, trainers: int) -> None:
    before = [data.draw(st.integers(0, 9)) for _ in range(trainers)]
    first = [data.draw(st.integers(b + 1, 10)) for b in before]
    losses = Losses.restored((), trainers)
    for rank in data.draw(st.permutations(range(trainers))):
        losses = losses.applied(rank, before[rank], first[rank], ORDER)
    expected = {
        sample
        for rank in range(trainers)
        for step in range(before[rank] + 1, first[rank])
        for sample in ORDER.slice_of(step, rank, trainers)
    }
    assert {sample for start, end in losses.lost for sample in range(start, end)} == expected
    assert merge(losses.lost) == losses.lost
    assert losses.gaps == ()


def test_a_long_gap_costs_one_range() -> None:
    order, first = order_of(10**9, 10), 10**7 + 1
    losses = Losses.restored((), 2).applied(0, 0, first, order).applied(1, 0, first, order)
    assert losses.lost == ((0, 10**8),)


def test_merging() -> None:
    assert merge([(5, 7), (1, 2), (2, 4), (6, 6), (0, 1), (6, 9)]) == ((0, 4), (5, 9))


def test_missing_row_updates_are_counted_by_rank() -> None:
    account = RowUpdates((100, 200), lost=-8)  # priority saves hold 8 updates of steps that no rank has made up for yet
    account = after_push(account, 0, before=130, rows=5)
    assert account == RowUpdates((135, 200), lost=22)
    account = after_push(account, 1, before=200, rows=7)
    assert account == RowUpdates((135, 207), lost=22)
    assert after_push(account, 0, before=135, rows=0) == account
