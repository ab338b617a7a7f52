"""The order of samples: each row once per epoch, for any number of trainers, from any step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_contract.spec import DataSpec
from cpr_trainer.data.dataset import Layout
from cpr_trainer.data.order import LANES, BatchOrder, Windows, held_out, permute

# --- Orders over all rows


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
def test_resumed_order_equals_the_uninterrupted_one(order: BatchOrder, trainers: int, data: st.DataObject) -> None:
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


def test_order_is_the_same_in_every_release() -> None:
    # A job resumes by its step alone, also under a newer image.
    order = BatchOrder(rows=1000, total_samples=5000, batch_size=1500, seed=2026)
    assert order.batch_indices(1)[:6].tolist() == [765, 740, 638, 764, 380, 849]
    assert order.batch_indices(3)[-6:].tolist() == [533, 240, 91, 911, 695, 664]


# --- Windows


blocks = st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=2, max_size=20)


def layout_of_blocks(parts: list[tuple[int, bool]]) -> Layout:
    """Blocks of these sizes; each with True begins a unit."""
    units = np.cumsum([place > 0 and alone for place, (_, alone) in enumerate(parts)])
    return Layout.of([size for size, _ in parts], units.tolist())


def order_of(layout: Layout, window: int, batch: int, seed: int = 1, epochs: int = 2) -> BatchOrder:
    windows = Windows(layout, window, batch, seed)
    return BatchOrder(layout.rows, epochs * layout.rows, batch, seed, windows)


def trained_rows(order: BatchOrder, trainers: int = 1, first_step: int = 1) -> list[int]:
    return [
        row
        for step in range(first_step, order.steps + 1)
        for rank in range(trainers)
        for row in order.indices_of(order.slice_of(step, rank, trainers)).tolist()
    ]


@settings(deadline=None)
@given(blocks, st.integers(1, 200), st.integers(1, 70), st.integers(1, 9), st.data())
def test_each_row_is_trained_once_per_epoch_from_any_step_for_any_number_of_trainers(
    parts: list[tuple[int, bool]], window: int, batch: int, trainers: int, data: st.DataObject
) -> None:
    seed = data.draw(st.integers(0, 2**31 - 1))
    order = order_of(layout_of_blocks(parts), window, batch, seed)
    whole = trained_rows(order)
    for start in (0, order.rows):
        assert sorted(whole[start : start + order.rows]) == list(range(order.rows))
    resumed_at = data.draw(st.integers(1, order.steps))
    again = order_of(layout_of_blocks(parts), window, batch, seed)  # another process
    assert trained_rows(again, trainers, resumed_at) == whole[(resumed_at - 1) * batch :]


@settings(deadline=None)
@given(blocks, st.integers(1, 200), st.integers(1, 40))
def test_windows_are_even_and_found_by_sample(parts: list[tuple[int, bool]], window: int, batch: int) -> None:
    layout = layout_of_blocks(parts)
    windows = Windows(layout, window, batch, 1)
    starts = [windows.first_sample(number) for number in range(3 * -(-layout.rows // window) + 1)]
    assert starts[-1] == 3 * layout.rows
    assert max(np.diff(starts)) <= window
    assert max(np.diff(starts)) - min(np.diff(starts)) <= 1
    for sample in range(3 * layout.rows):
        number = windows.window_of(sample)
        assert starts[number] <= sample < starts[number + 1]


def test_a_window_is_made_of_whole_blocks_in_the_epochs_order() -> None:
    layout = Layout.of([100] * 50, list(range(50)))
    order = order_of(layout, window=500, batch=50)
    rows = np.array(trained_rows(order))
    for epoch in (rows[:5000], rows[5000:]):
        for window in epoch.reshape(10, 500):
            assert len(np.unique(window // 100)) == 5, "five whole blocks"
    assert rows[:500].tolist() != rows[5000:5500].tolist()
    assert not np.array_equal(np.unique(rows[:500] // 100), np.unique(rows[5000:5500] // 100)), "an order of its own"


def test_blocks_of_one_unit_stay_in_their_order() -> None:
    layout = Layout.of([100] * 40, np.repeat(np.arange(4), 10).tolist())
    windows = Windows(layout, 400, 50, 7)
    read = np.concatenate([windows.blocks_of(number, 0, 1) for number in range(10)])
    runs = read.reshape(4, 10)
    assert (np.diff(runs, axis=1) == 1).all()
    assert sorted(run[0] for run in runs.tolist()) == [0, 10, 20, 30]


def test_batches_mix_the_window_and_windows_are_shuffled() -> None:
    layout = Layout.of([1000] * 64, list(range(64)))
    order = order_of(layout, window=32_000, batch=512, epochs=1)
    first = order.batch_indices(1)
    assert len(np.unique(first // 1000)) > 25, "from most of the window's 32 blocks"
    neighbours = np.corrcoef(np.argsort(first)[:-1], np.argsort(first)[1:])[0, 1]
    assert abs(neighbours) < 1
    within = order.indices_of(range(32_000))
    lane = within[np.arange(32_000) % 512 < 2]  # the first lane: 125 rows
    assert np.ptp(np.sort(lane)) < 1000
    assert abs(np.corrcoef(lane, np.arange(len(lane)))[0, 1]) < 5 / np.sqrt(len(lane))


@pytest.mark.parametrize("trainers", [2, 8, 64, LANES])
def test_a_trainer_reads_its_share_of_the_blocks(trainers: int) -> None:
    layout = Layout.of([100] * 2048, list(range(2048)))
    windows = Windows(layout, 51_200, 2048, 3)
    for window in (0, 1, 5):
        read = [windows.blocks_of(window, rank, trainers) for rank in range(trainers)]
        assert sum(map(len, read)) <= 512 + 3 * trainers, "the blocks at the ends of lanes are read twice"
        assert len(np.unique(np.concatenate(read))) >= 512


def test_order_of_windows_is_the_same_in_every_release() -> None:
    # A job resumes by its step alone, also under a newer image.
    order = order_of(Layout.of([300, 200, 500], [0, 1, 2]), window=400, batch=50, seed=2026)
    assert order.batch_indices(1)[:5].tolist() == [306, 310, 316, 321, 330]
    assert order.batch_indices(39)[-5:].tolist() == [468, 474, 484, 488, 493]


@settings(deadline=None)
@given(blocks, st.integers(1, 70), st.integers(1, 9), st.integers(1, 60), st.floats(0, 0.5))
def test_rows_without_shuffling_keep_their_order_in_each_epoch(
    parts: list[tuple[int, bool]], batch: int, trainers: int, prefetch_rows: int, portion: float
) -> None:
    data, layout = DataSpec("CSV", "x", 3, None, batch, 1, 0, shuffle_rows=0, hold_out=portion), layout_of_blocks(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cpr_trainer.data.dataset._PREFETCH_ROWS", prefetch_rows)
        order = BatchOrder.of(data, layout)
    rows = held_out(data, layout.rows).start
    assert trained_rows(order, trainers) == 3 * list(range(rows))
    windows = order.windows
    assert (windows is None) == (rows <= max(prefetch_rows, batch))
    if windows is not None:
        for window in range(windows.per_epoch):
            of_window = range(windows.first_sample(window), windows.first_sample(window + 1))
            needed = layout.blocks_of(windows.rows_at(of_window))
            read = [windows.blocks_of(window, rank, trainers).tolist() for rank in range(trainers)]
            assert all(each == sorted(each) for each in read)
            assert {block for each in read for block in each} == set(needed.tolist())


def test_small_data_is_shuffled_as_a_whole() -> None:
    data = DataSpec("CSV", "x", 1, None, 50, 1, 0, shuffle_rows=1000)
    assert BatchOrder.of(data, Layout.of([500, 500], [0, 1])).windows is None
    assert BatchOrder.of(data, Layout.of([500, 501], [0, 1])).windows is not None
    assert BatchOrder.of(data, Layout.whole(10**9)).windows is None, "any row is as near as any other"


@settings(deadline=None)
@given(blocks, st.floats(0, 0.5), st.integers(1, 300))
def test_held_out_rows_are_never_trained(parts: list[tuple[int, bool]], portion: float, window: int) -> None:
    layout = layout_of_blocks(parts)
    data = DataSpec("CSV", "x", 2, None, 16, 1, 0, shuffle_rows=window, hold_out=portion)
    order, out = BatchOrder.of(data, layout), held_out(data, layout.rows)
    assert out.stop == layout.rows
    assert len(out) == int(portion * layout.rows)
    assert sorted(set(trained_rows(order))) == list(range(out.start))
    assert order.total_samples == 2 * out.start


def test_at_least_one_row_is_trained() -> None:
    data = DataSpec("CSV", "x", 1, None, 16, 1, 0, hold_out=0.99)
    assert held_out(replace(data, hold_out=1.0), 5) == range(1, 5)
    assert held_out(data, 1) == range(1, 1)
