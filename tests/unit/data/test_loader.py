from __future__ import annotations

import threading
from contextlib import closing

import numpy as np
import pytest

from cpr_trainer.data.dataset import Batch, Layout
from cpr_trainer.data.loader import Loader
from cpr_trainer.data.order import BatchOrder, Windows
from support.plain_batches import single_ids

ORDER = BatchOrder(rows=30, total_samples=45, batch_size=10, seed=4)


class Numbers:
    """A dataset with the requested indices as ids; notes the calls."""

    def __init__(self, fail_at: range = range(0), layout: Layout | None = None) -> None:
        self.layout = layout or Layout.whole(30)
        self.prefetched: list[list[int]] = []
        self.calls = 0
        self.called = threading.Semaphore(0)
        self._fail_at = fail_at

    def take(self, indices: np.ndarray) -> Batch:
        self.calls += 1
        self.called.release()
        if self.calls in self._fail_at:
            raise OSError("disk gone")
        return Batch(np.zeros((len(indices), 13), np.float32), indices[:, None], np.zeros(len(indices), np.float32))

    def prefetch(self, blocks: np.ndarray) -> None:
        self.prefetched.append(blocks.tolist())


def loader(dataset: Numbers, *, rank: int = 0, trainers: int = 1, first_step: int = 1) -> closing[Loader]:
    return closing(Loader(dataset, ORDER, rank=rank, trainers=trainers, first_step=first_step))


def test_steps_come_in_order_with_their_batches() -> None:
    with loader(Numbers()) as batches:
        got = [(step, single_ids(batch)[:, 0].tolist()) for step, batch in batches]
    assert got == [(step, ORDER.batch_indices(step).tolist()) for step in range(1, 6)]


@pytest.mark.parametrize("first_step", [1, 3, 5, 6])
def test_the_slices_of_all_ranks_make_the_batch_from_any_step(first_step: int) -> None:
    parts: dict[int, list[int]] = {}
    for rank in range(4):
        with loader(Numbers(), rank=rank, trainers=4, first_step=first_step) as batches:
            for step, batch in batches:
                parts.setdefault(step, []).extend(single_ids(batch)[:, 0].tolist())
    assert parts == {step: ORDER.batch_indices(step).tolist() for step in range(first_step, 6)}


def test_more_trainers_than_samples_leave_some_with_an_empty_slice() -> None:
    with loader(Numbers(), rank=0, trainers=20, first_step=5) as batches:
        assert [(step, len(batch)) for step, batch in batches] == [(5, 0)]


def test_exactly_one_batch_is_prepared_ahead() -> None:
    dataset = Numbers()
    with loader(dataset) as batches:
        assert dataset.called.acquire()
        next(batches)
        assert dataset.called.acquire()
        assert not dataset.called.acquire(timeout=0.2)
        assert dataset.calls == 2


def test_error_is_raised_in_place_of_its_batch() -> None:
    with loader(Numbers(fail_at=range(2, 99))) as batches:
        assert next(batches)[0] == 1
        with pytest.raises(OSError, match="disk gone"):
            next(batches)


def test_failed_batch_is_prepared_again_on_the_next_request() -> None:
    with loader(Numbers(fail_at=range(3, 5))) as batches:
        got: list[int] = []
        while len(got) < 5:
            try:
                got.append(next(batches)[0])
            except OSError:
                continue
    assert got == [1, 2, 3, 4, 5]


def test_closing_ends_the_thread_and_the_iteration() -> None:
    before = set(threading.enumerate())

    def started() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each not in before and each.name.startswith("loader")]

    with loader(Numbers()) as batches:
        next(batches)
        assert started()
    for thread in started():
        thread.join()
        assert not thread.is_alive()
    assert list(batches) == []


def test_any_step_can_be_loaded_out_of_order() -> None:
    with loader(Numbers(), rank=1, trainers=2, first_step=4) as batches:
        assert single_ids(batches.batch(2))[:, 0].tolist() == ORDER.batch_indices(2).tolist()[5:]
        assert next(batches)[0] == 4


def test_blocks_of_the_current_and_the_next_window_are_prefetched() -> None:
    layout = Layout.of([10] * 6, list(range(6)))
    windows = Windows(layout, 20, 10, 4)
    order = BatchOrder(60, 60, 10, 4, windows)
    dataset = Numbers(layout=layout)
    with closing(Loader(dataset, order, rank=0, trainers=1, first_step=3)) as batches:
        assert [step for step, _ in batches] == [3, 4, 5, 6]
        batches._prefetcher.submit(int).result()
        second, third = (windows.blocks_of(number, 0, 1).tolist() for number in (1, 2))
        assert dataset.prefetched == [second + third, third]
    assert dataset.prefetched[-1] == [], "nothing more is read"
