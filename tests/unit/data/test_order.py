from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_contract.spec import DataSpec
from cpr_trainer.data.dataset import Layout
from cpr_trainer.data.order import BatchOrder, permute

orders = st.builds(
    BatchOrder,
    rows=st.integers(1, 60),
    total_samples=st.integers(1, 200),
    batch_size=st.integers(1, 70),
    seed=st.integers(0, 2**63 - 1),
)


def trained(order: BatchOrder, trainers_at: list[int], first_step: int = 1) -> list[int]:
    """The dataset rows in the order of global samples; step t runs with trainers_at[t % len] trainers."""
    rows = []
    for step in range(first_step, order.steps + 1):
        trainers = trainers_at[step % len(trainers_at)]
        for rank in range(trainers):
            rows += order.indices_of(order.slice_of(step, rank, trainers)).tolist()
    return rows


@settings(deadline=None)
@given(orders, st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_each_sample_is_trained_once_per_epoch_for_any_number_of_trainers(
    order: BatchOrder, trainers_at: list[int]
) -> None:
    rows = trained(order, trainers_at)
    assert len(rows) == order.total_samples
    for start in range(0, len(rows), order.rows):
        epoch = rows[start : start + order.rows]
        assert len(set(epoch)) == len(epoch), "no row twice in an epoch"
        assert set(epoch) <= set(range(order.rows))
        if len(epoch) == order.rows:
            assert set(epoch) == set(range(order.rows)), "no row left out of a whole epoch"


@settings(deadline=None)
@given(orders, st.integers(1, 9), st.data())
def test_training_resumes_from_any_step_where_it_would_have_gone_on(
    order: BatchOrder, trainers: int, data: st.DataObject
) -> None:
    resumed_at = data.draw(st.integers(1, order.steps))
    whole = trained(order, [1])
    assert trained(order, [trainers], resumed_at) == whole[(resumed_at - 1) * order.batch_size :]


@settings(deadline=None)
@given(orders, st.integers(1, 9))
def test_slices_are_even_contiguous_and_in_rank_order(order: BatchOrder, trainers: int) -> None:
    for step in range(1, order.steps + 1):
        slices = [order.slice_of(step, rank, trainers) for rank in range(trainers)]
        assert [s for part in slices for s in part] == list(order.slice_of(step))
        assert max(map(len, slices)) - min(map(len, slices)) <= 1


@pytest.mark.parametrize(("rank", "trainers", "step"), [(0, 1, 0), (0, 1, 4), (-1, 2, 1), (2, 2, 1)])
def test_steps_and_ranks_outside_are_refused(rank: int, trainers: int, step: int) -> None:
    with pytest.raises(ValueError, match="is outside"):
        BatchOrder(rows=100, total_samples=250, batch_size=100, seed=1).slice_of(step, rank, trainers)


def test_an_order_counts_samples_or_whole_epochs() -> None:
    def spec(epochs: int | None, samples: int | None) -> DataSpec:
        return DataSpec("Criteo", "x", epochs, samples, 32, 5, 0)

    ten = Layout.whole(10)
    assert BatchOrder.of(spec(3, None), ten) == BatchOrder(10, 30, 32, 5)
    assert BatchOrder.of(spec(None, 25), ten) == BatchOrder(10, 25, 32, 5)
    with pytest.raises(ValueError, match="neither"):
        BatchOrder.of(spec(None, None), ten)


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**63), st.integers(0, 2**31))
def test_a_permutation_is_one_to_one(rows: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(rows), np.array([epoch]), rows, seed)), np.arange(rows))


@pytest.mark.parametrize("rows", [2, 5, 12, 40])
def test_every_row_comes_at_every_place_equally_often(rows: int) -> None:
    epochs = np.repeat(np.arange(3000), rows)
    places = np.tile(np.arange(rows), 3000)
    counts = np.zeros((rows, rows))
    np.add.at(counts, (places, permute(places, epochs, rows, 7)), 1)
    freedom = (rows - 1) ** 2
    chi_square = ((counts - 3000 / rows) ** 2 / (3000 / rows)).sum()
    assert abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom)


def test_huge_datasets_need_no_memory() -> None:
    rows = 2**62
    drawn = permute(np.arange(1000), np.array([3]), rows, 1)
    assert len(set(drawn.tolist())) == 1000
    assert drawn.min() >= 0
    assert drawn.max() < rows
    assert drawn.max() > rows // 2


def test_the_order_never_changes() -> None:
    # A job resumes by its step alone, also under a newer image.
    order = BatchOrder(rows=1000, total_samples=5000, batch_size=1500, seed=2026)
    assert order.batch_indices(1)[:6].tolist() == [765, 740, 638, 764, 380, 849]
    assert order.batch_indices(3)[-6:].tolist() == [533, 240, 91, 911, 695, 664]
