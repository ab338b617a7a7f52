"""Prefetched vectors equal those that are read one step after another."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cpr_trainer.arrays import Floats
from cpr_trainer.data.dataset import Batch
from cpr_trainer.embedding.access import single_tensor
from cpr_trainer.embedding.bfloat16 import narrow, widen
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.exchange import Exchange
from cpr_trainer.trainer.prefetch import Feed, Prefetch, Slice, Vectors, as_array, as_tensor, slice_of

_PLACEMENT = Placement((7, 5), shards=3)
_TABLES = len(_PLACEMENT.rows_per_table)


class _Table:
    """Rows of one number each; a lookup reads them at once, as a shard that answers in order."""

    def __init__(self) -> None:
        self.rows = np.arange(_PLACEMENT.total, dtype=np.float32)[:, np.newaxis]
        self.requested = 0

    def empty_vectors(self, rows: UniqueRows) -> Floats:
        return np.full((len(rows), 1), np.nan, np.float32)

    def lookup(self, step: int, rows: UniqueRows, vectors: Floats, as_of: int | None) -> Floats:
        del step, as_of
        self.requested += len(rows)
        vectors[:] = self.rows[rows.numbers]
        return vectors

    def push(self, rows: UniqueRows) -> None:
        self.rows[rows.numbers] += 100.0


def _slice(step: int, picks: list[int], before: Slice | None = None) -> Slice:
    ids = np.array([(pick % 7, pick % 5) for pick in picks], np.int64).reshape(-1, _TABLES)
    empty: Any = np.zeros(len(ids), np.float32)
    return slice_of(step, Batch(empty, ids, empty), _PLACEMENT, None if before is None else before.access.unique)


def _vectors(table: _Table, batch_slice: Slice) -> Vectors:
    return Vectors(cast(Exchange, table), batch_slice)


def _at_once(lookup: object) -> Floats:
    return cast(Floats, lookup)


_PICKS = st.lists(st.integers(0, 34), max_size=6)


@given(_PICKS, _PICKS)
def test_rows_changed_by_the_running_step_are_read_after_its_push(now: list[int], then: list[int]) -> None:
    table, running = _Table(), _slice(1, now)
    batch_slice = _slice(2, then, running)
    vectors = _vectors(table, batch_slice)
    vectors.request_early()
    table.push(running.access.unique)
    vectors.request_late()

    expected = torch.from_numpy(table.rows[batch_slice.access.unique.numbers])
    assert torch.equal(single_tensor(vectors.take(_at_once)), expected)
    assert table.requested == len(batch_slice.access.unique), "each row is fetched once"


@given(_PICKS, _PICKS)
def test_all_rows_are_read_again_after_a_shard_was_unavailable(now: list[int], then: list[int]) -> None:
    table, running = _Table(), _slice(1, now)
    batch_slice = _slice(2, then, running)
    vectors = _vectors(table, batch_slice)
    vectors.request_early()
    table.push(running.access.unique)
    table.rows += 1000.0  # the shard went back in time: what was read before counts no more
    vectors.request_all()

    expected = torch.from_numpy(table.rows[batch_slice.access.unique.numbers])
    assert torch.equal(single_tensor(vectors.take(_at_once)), expected)


class _Feed:
    """Slices at hand."""

    def __init__(self, slices: list[Slice]) -> None:
        self._slices = iter(slices)

    def take(self) -> Slice | None:
        return next(self._slices, None)


@given(st.lists(_PICKS, min_size=1, max_size=8), st.integers(1, 4))
def test_vectors_miss_as_many_steps_as_they_are_prefetched_and_with_depth_one_none(
    picks: list[list[int]], depth: int
) -> None:
    table, slices = _Table(), list[Slice]()
    for step, each in enumerate(picks, 1):
        slices.append(_slice(step, each, slices[-1] if slices and depth == 1 else None))
    past = [table.rows.copy()]
    prefetch = Prefetch(cast(Feed, _Feed(slices)), cast(Exchange, table), depth, 0, merges=False)
    for step, batch_slice in enumerate(slices, 1):
        vectors = prefetch.take()
        assert vectors is not None
        prefetch.request(step)
        seen = past[step - 1] if depth == 1 else past[max(step - 1 - depth, 0)]
        assert torch.equal(
            single_tensor(vectors.take(_at_once)), torch.from_numpy(seen[batch_slice.access.unique.numbers])
        )
        table.push(batch_slice.access.unique)
        past.append(table.rows.copy())
        prefetch.after_step()
    assert prefetch.take() is None


@pytest.mark.parametrize(("of", "travels_as"), [(torch.float32, np.float32), (torch.bfloat16, np.uint16)])
def test_values_are_converted_without_a_copy(of: torch.dtype, travels_as: type) -> None:
    values = torch.randn(5, 3).to(of)
    array = as_array(values)
    assert (array.dtype, array.shape) == (travels_as, (5, 3))
    back = as_tensor(array)
    assert back.dtype is of
    values[1, 2] = 7.0
    assert float(back[1, 2]) == 7.0


def test_bfloat16_values_are_bit_exact() -> None:
    values = torch.randn(5, 3)
    assert np.array_equal(as_array(values.bfloat16()), narrow(values.numpy()))
    assert torch.equal(as_tensor(narrow(values.numpy())).float(), torch.from_numpy(widen(narrow(values.numpy()))))


def test_gradients_are_converted_in_row_order() -> None:
    array = as_array(torch.randn(3, 5).T.requires_grad_())
    assert array.flags.c_contiguous
