from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cpr_trainer.embedding.access import find_access
from cpr_trainer.embedding.placement import Placement
from support.plain_batches import access_of

ROWS = (7, 3, 40)
PLACEMENT = Placement(ROWS, 3)

batches = st.integers(0, 30).flatmap(
    lambda n: st.tuples(*(hnp.arrays(np.int64, n, elements=st.integers(0, rows - 1)) for rows in ROWS)).map(
        lambda columns: np.stack(columns, axis=1)
    )
)


def all_values(dim: int = 4) -> torch.Tensor:
    return torch.arange(sum(ROWS) * dim, dtype=torch.float32).view(-1, dim)


@settings(deadline=None)
@given(batches)
def test_each_sample_gets_its_own_rows_and_each_row_is_asked_for_once(ids: np.ndarray) -> None:
    access = access_of(PLACEMENT, ids)
    numbers = access.unique.numbers
    assert len(set(numbers.tolist())) == len(numbers)
    embeddings = access.embeddings(all_values()[torch.from_numpy(numbers)])
    assert torch.equal(embeddings, all_values()[torch.from_numpy(ids + PLACEMENT.offsets)])


@settings(deadline=None)
@given(batches)
def test_rows_are_grouped_by_shard(ids: np.ndarray) -> None:
    unique = find_access(PLACEMENT, ids).unique
    assert len(unique.bounds) == 4
    for shard in range(3):
        part = unique.numbers[unique.on_shard(shard)]
        assert (PLACEMENT.locate(part)[0] == shard).all()
    assert unique.bounds[-1] == len(unique)


@settings(deadline=None)
@given(batches)
def test_gradients_are_summed_over_samples(ids: np.ndarray) -> None:
    access = access_of(PLACEMENT, ids)
    vectors = torch.randn(len(access.unique), 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    weights = torch.randn(*ids.shape, 4, generator=torch.Generator().manual_seed(2))
    (access.embeddings(vectors) * weights).sum().backward()
    torch.testing.assert_close(access.sum_gradients(weights), vectors.grad)


@settings(deadline=None)
@given(batches, batches)
def test_rows_shared_with_another_batch(one: np.ndarray, other: np.ndarray) -> None:
    mine, theirs = find_access(PLACEMENT, one).unique, find_access(PLACEMENT, other).unique
    shared = mine.shared_with(theirs)
    assert shared.tolist() == [number in set(theirs.numbers.tolist()) for number in mine.numbers.tolist()]
    selected = mine.select(~shared)
    assert selected.numbers.tolist() == mine.numbers[~shared].tolist()
    for shard in range(3):
        assert (PLACEMENT.locate(selected.numbers[selected.on_shard(shard)])[0] == shard).all()
    assert selected.bounds[-1] == len(selected)


def test_an_empty_batch_needs_nothing() -> None:
    access = access_of(PLACEMENT, np.empty((0, 3), np.int64))
    assert len(access.unique) == 0
    assert access.embeddings(torch.empty(0, 4)).shape == (0, 3, 4)
    assert access.sum_gradients(torch.empty(0, 3, 4)).shape == (0, 4)
