"""The order of data that arrives: each row once, in a step that never changes, for any trainers and any split."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from threading import Semaphore

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_contract.spec import OPEN_TOTAL, DataSpec, FollowSpec, samples_at
from cpr_trainer.data.dataset import Batch, Layout
from cpr_trainer.data.loader import Loader
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.data.stream_order import StreamOrder

#: A segment as its blocks, each with the number of its rows, and its voids; without blocks it is voids alone.
Parts = tuple[list[int], int]

segments = st.lists(st.tuples(st.lists(st.integers(1, 12), max_size=5), st.integers(0, 9)), min_size=1, max_size=7)


def data_of(batch: int, window: int, seed: int = 1, hold_out: float = 0.0) -> DataSpec:
    return DataSpec("CSV", "x", 1, None, batch, seed, 0, shuffle_rows=window, hold_out=hold_out)


def layout_of(blocks: list[int]) -> Layout | None:
    return Layout.of(blocks, list(range(len(blocks)))) if blocks else None


def extended(order: StreamOrder, parts: list[Parts]) -> StreamOrder:
    for blocks, voids in parts:
        order = order.followed_by(layout_of(blocks), voids)
    return order


def ended(order: StreamOrder) -> StreamOrder:
    return order.followed_by(None, -order.known_samples % order.batch_size).ended()


def rows_of(order: StreamOrder, step: int, trainers: int = 1) -> list[int]:
    slices = (order.slice_of(step, rank, trainers) for rank in range(trainers))
    return [row for samples in slices for row in order.indices_of(samples).tolist()]


def test_first_segment_has_the_order_of_a_job_that_does_not_follow() -> None:
    for window, hold_out in ((1000, 0.0), (40, 0.0), (40, 0.3), (0, 0.1)):
        data, layout = data_of(16, window, 2026, hold_out), layout_of([25] * 9)
        assert layout is not None
        alone, order = BatchOrder.of(data, layout), StreamOrder(data).followed_by(layout)
        assert order.steps == alone.total_samples // 16
        for step in range(1, order.steps + 1):
            assert rows_of(order, step) == alone.batch_indices(step).tolist()


@settings(deadline=None)
@given(segments, st.integers(1, 20), st.integers(0, 30), st.integers(1, 5), st.integers(0, 2**31 - 1))
def test_each_row_is_trained_once_however_rows_arrive(
    parts: list[Parts], batch: int, window: int, trainers: int, seed: int
) -> None:
    order = ended(extended(StreamOrder(data_of(batch, window, seed)), parts))
    trained = [row for step in range(1, order.steps + 1) for row in rows_of(order, step, trainers)]
    assert sorted(trained) == list(range(sum(sum(blocks) for blocks, _ in parts)))
    # A segment ends before the next begins, whatever batches are.
    bounds = np.cumsum([0, *(sum(blocks) for blocks, _ in parts)]).tolist()
    assert all(sorted(trained[start:stop]) == list(range(start, stop)) for start, stop in pairwise(bounds))


@pytest.mark.parametrize(
    ("follow", "waiting"),
    [(FollowSpec(1.0), 0), (FollowSpec(1.0, until_s=5.0), 1), (FollowSpec(1.0, idle="Finish"), 1)],
)
def test_last_batch_of_data_that_may_end_waits_for_a_later_pin(follow: FollowSpec, waiting: int) -> None:
    data = replace(data_of(8, 0), follow=follow)
    one, three = (extended(StreamOrder(data), [([rows], 0)]) for rows in (8, 24))
    assert (StreamOrder(data).steps, one.steps, three.steps) == (0, 1 - waiting, 3 - waiting)
    assert extended(three, [([8], 0)]).steps == 4 - waiting
    assert three.followed_by(None).ended().steps == 3


@settings(deadline=None)
@given(segments, segments, st.integers(1, 20), st.integers(0, 30))
def test_later_segments_change_no_step(known: list[Parts], later: list[Parts], batch: int, window: int) -> None:
    before = extended(StreamOrder(data_of(batch, window)), known)
    after = ended(extended(before, later))
    assert after.steps >= before.steps
    assert (before.total_samples, after.total_samples) == (OPEN_TOTAL, after.steps * batch)
    for step in range(1, before.steps + 1):
        assert rows_of(before, step) == rows_of(after, step)
        assert before.slice_of(step, 1, 3) == after.slice_of(step, 1, 3)
        samples = [samples_at(step, batch, order.total_samples) for order in (before, after)]
        assert samples == [step * batch] * 2, "frames of ranks that know different ends agree"


@settings(deadline=None)
@given(segments, st.integers(1, 20), st.integers(0, 30), st.data())
def test_successor_that_begins_at_a_later_segment_trains_the_same_rows(
    parts: list[Parts], batch: int, window: int, data: st.DataObject
) -> None:
    whole = ended(extended(StreamOrder(data_of(batch, window)), parts))
    start = data.draw(st.integers(0, len(parts) - 1))
    first, later = whole.segments[start], StreamOrder(whole.data)
    later = later.followed_by(layout_of(parts[start][0]), parts[start][1], first=(first.number, first.first_sample))
    later = ended(extended(later, parts[start + 1 :]))
    assert later.steps == whole.steps
    for step in range(-(-first.first_sample // batch) + 1, whole.steps + 1):
        assert [row + first.first_row for row in rows_of(later, step)] == rows_of(whole, step)
        assert later.real_samples(step) == whole.real_samples(step)


def test_voids_fill_a_batch_and_are_no_samples() -> None:
    order = StreamOrder(data_of(4, 100)).followed_by(layout_of([5]))
    assert order.steps == 1, "the fifth row waits for more"
    order = order.followed_by(None, 3)
    assert order.steps == 2
    assert [len(rows_of(order, step)) for step in (1, 2)] == [4, 1]
    assert [order.real_samples(step) for step in (1, 2)] == [4, 1]
    assert order.indices_of(order.slice_of(2, 1, 2)).tolist() == []
    assert order.window_at(7) is None


def test_step_ends_the_last_pin_whose_samples_end_in_its_batch() -> None:
    order = extended(StreamOrder(data_of(10, 0)), [([15], 0), ([3], 0), ([], 0), ([2], 0), ([15], 0), ([], 5)])
    assert [order.ended_pin(step) for step in (1, 2, 3, 4)] == [0, 4, 0, 6]


@settings(deadline=None)
@given(segments, segments, st.integers(1, 15))
def test_later_pins_change_no_pin_that_a_step_ends(known: list[Parts], later: list[Parts], batch: int) -> None:
    order = extended(StreamOrder(data_of(batch, 0)), known)
    longer = extended(order, later)
    for step in range(1, order.known_samples // batch + 1):
        assert longer.ended_pin(step) == order.ended_pin(step)
        needed = next(each.number for each in longer.segments if each.stop > (step - 1) * batch)
        assert longer.since(needed).ended_pin(step) == order.ended_pin(step), "earlier ones may be dropped"


def test_segments_have_orders_of_their_own() -> None:
    order = extended(StreamOrder(data_of(50, 100)), [([50], 0), ([50], 0)])
    first, second = rows_of(order, 1), rows_of(order, 2)
    assert [row - 50 for row in second] != first


def test_rows_of_the_first_segment_alone_are_held_out() -> None:
    order = extended(StreamOrder(data_of(10, 100, hold_out=0.5)), [([20], 0), ([20], 0)])
    assert sorted(rows_of(order, 1)) == list(range(10))
    assert sorted(rows_of(order, 2) + rows_of(order, 3)) == list(range(20, 40))


def test_order_that_ended_has_whole_batches_and_no_more_segments() -> None:
    order = StreamOrder(data_of(4, 100)).followed_by(layout_of([5]))
    with pytest.raises(ValueError, match="5 samples are no whole batches of 4"):
        order.ended()
    assert ended(order).total_samples == 8
    with pytest.raises(AssertionError, match="no segment follows the last one"):
        ended(order).followed_by(None, 4)


@pytest.mark.parametrize(("step", "rank", "trainers"), [(0, 0, 1), (2, 0, 1), (1, 2, 2), (1, -1, 2)])
def test_unknown_steps_and_ranks_are_refused(step: int, rank: int, trainers: int) -> None:
    order = StreamOrder(data_of(4, 100)).followed_by(layout_of([5]))
    with pytest.raises(ValueError, match="is outside"):
        order.slice_of(step, rank, trainers)


class _Numbers:
    """A dataset with the requested rows as labels; notes the blocks that are read ahead."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.prefetched: list[list[int]] = []
        self.announced = Semaphore(0)

    def take(self, indices: np.ndarray) -> Batch:
        return Batch(np.zeros((len(indices), 1), np.float32), indices[:, None], indices.astype(np.float32))

    def prefetch(self, blocks: np.ndarray) -> None:
        if len(blocks):
            self.prefetched.append(blocks.tolist())
            self.announced.release()


def test_trainers_prefetch_only_blocks_of_their_lanes_in_each_segment() -> None:
    """Slices are parts of the job's batches, wherever in a batch a segment begins."""
    parts = [([64] * 40, 0), ([32], 0), ([64] * 40, 95)]
    order = extended(StreamOrder(data_of(128, 1280)), parts)
    layout = layout_of([size for blocks, _ in parts for size in blocks])
    assert layout is not None
    for rank in range(2):
        dataset = _Numbers(layout)
        with closing(Loader(dataset, order, rank=rank, trainers=2, first_step=1)) as batches:
            taken = [batch.labels.astype(int) for _, batch in batches]
            for _ in range(4):  # two windows of two segments; a loader that is closed announces no more
                dataset.announced.acquire()
        announced_blocks = [set(blocks) for blocks in dataset.prefetched]
        assert len(announced_blocks) == 4
        for segment, (first, stop) in enumerate(((0, 40), (41, 81))):
            read = {block for rows in taken for block in layout.blocks_of(rows).tolist() if first <= block < stop}
            announced = announced_blocks[2 * segment] | announced_blocks[2 * segment + 1]
            assert read <= announced
            assert len(announced) < 0.75 * (stop - first)
