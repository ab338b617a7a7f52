"""Bags of ids: as lists of Python have them, and pooled as torch pools them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_trainer.embedding.bags import Bags, Column
from cpr_trainer.embedding.placement import Placement
from support.plain_batches import access_of

ROWS = (7, 3, 40)
MEANS = (True, False, True)
PLACEMENT = Placement(ROWS, 2)

#: Samples as lists of bags, one for each table.
Samples = list[tuple[list[int], ...]]
samples_of = st.lists(st.tuples(*(st.lists(st.integers(0, rows - 1), max_size=5) for rows in ROWS)), max_size=12)


def bags_of(samples: Samples) -> Bags:
    columns = []
    for table in range(len(ROWS)):
        ids = np.array([one for sample in samples for one in sample[table]], np.int32)
        columns.append(Column(ids, np.array([len(sample[table]) for sample in samples], np.int64)))
    return Bags.of_columns(columns, np.array(MEANS))


def as_lists(bags: Bags) -> Samples:
    parts = [part.tolist() for part in np.split(bags.ids, bags.offsets[1:-1])] if len(bags) else []
    return [tuple(parts[at : at + len(ROWS)]) for at in range(0, len(parts), len(ROWS))]


@settings(deadline=None)
@given(samples_of)
def test_columns_become_samples(samples: Samples) -> None:
    bags = bags_of(samples)
    assert len(bags) == len(samples)
    assert as_lists(bags) == samples
    assert bags.lengths.tolist() == [[len(bag) for bag in sample] for sample in samples]


@settings(deadline=None)
@given(samples_of.filter(len), st.data())
def test_samples_are_taken_in_any_order(samples: Samples, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(samples) - 1), max_size=20))
    taken = bags_of(samples).take(np.array(places, np.int64))
    assert as_lists(taken) == [samples[place] for place in places]


@settings(deadline=None)
@given(st.lists(samples_of, min_size=1, max_size=4))
def test_bags_are_joined(parts: list[Samples]) -> None:
    assert as_lists(Bags.join([bags_of(part) for part in parts])) == [sample for part in parts for sample in part]


def test_bags_are_spread_over_empty_ones() -> None:
    samples: Samples = [([1], [], [2, 3]), ([], [2], [])]
    spread = as_lists(bags_of(samples).spread(4, np.array([1, 3])))
    assert spread == [([], [], []), samples[0], ([], [], []), samples[1]]


def modules(dim: int, dtype: torch.dtype) -> list[torch.nn.EmbeddingBag]:
    torch.manual_seed(1)
    kinds = ["mean" if mean else "sum" for mean in MEANS]
    return [torch.nn.EmbeddingBag(rows, dim, mode=kind).to(dtype) for rows, kind in zip(ROWS, kinds, strict=True)]


def pooled(tables: list[torch.nn.EmbeddingBag], samples: Samples) -> torch.Tensor:
    """Return the vectors by torch of each bag, [n, T, D]."""
    columns = []
    for place, table in enumerate(tables):
        bags = [sample[place] for sample in samples]
        offsets = np.cumsum([0, *map(len, bags)])[:-1]
        flat = torch.tensor([one for bag in bags for one in bag], dtype=torch.int64)
        columns.append(table(flat, torch.from_numpy(offsets.astype(np.int64))))
    return torch.stack(columns, dim=1)


@settings(deadline=None)
@given(samples_of.filter(len))
def test_vectors_and_gradients_are_those_of_torchs_own_bags(samples: Samples) -> None:
    tables = modules(4, torch.float32)
    expected = pooled(tables, samples)
    gradients = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    expected.backward(gradients)

    access = access_of(PLACEMENT, bags_of(samples))
    numbers = torch.from_numpy(access.unique.numbers)
    assert len(set(numbers.tolist())) == len(numbers), "each row is asked for once"
    weights = torch.cat([table.weight.detach() for table in tables])
    torch.testing.assert_close(access.embeddings(weights[numbers]), expected.detach())
    every = torch.zeros_like(weights)
    every[numbers] = access.sum_gradients(gradients)
    torch.testing.assert_close(every, torch.cat([table.weight.grad for table in tables]))


@pytest.mark.parametrize("kind", ["single ids", "sums", "means", "weighted"])
def test_spare_places_change_neither_vectors_nor_the_sums_of_gradients(kind: str) -> None:
    random, samples = np.random.default_rng(4), 11
    lengths = random.integers(0, 4, (3, samples))
    columns = [
        Column(random.integers(0, rows, sizes.sum()).astype(np.int32), sizes, random.random(sizes.sum(), np.float32))
        for rows, sizes in zip(ROWS, lengths, strict=True)
    ]
    if kind != "weighted":
        columns = [replace(column, weights=None) for column in columns]
    bags = Bags.of_columns(columns, np.array(MEANS if kind == "means" else (False,) * 3))
    access = access_of(PLACEMENT, random.integers(0, ROWS, (samples, 3)) if kind == "single ids" else bags)
    vectors, gradients = torch.randn(len(access.unique), 4), torch.randn(samples, 2 + 3, 4)
    found = access.embeddings(vectors, spare=2)
    assert torch.equal(found[:, 2:], access.embeddings(vectors))
    assert not found[:, :2].any()
    assert torch.equal(access.sum_gradients(gradients), access.sum_gradients(gradients[:, 2:]))


def test_bags_of_one_equal_single_ids() -> None:
    ids = np.random.default_rng(1).integers(0, ROWS, (20, 3))
    ones = np.ones(20, np.int64)
    bags = Bags.of_columns([Column(ids[:, t].astype(np.int32), ones) for t in range(3)], np.array(MEANS))
    one, other = access_of(PLACEMENT, ids), access_of(PLACEMENT, bags)
    assert np.array_equal(one.unique.numbers, other.unique.numbers)
    vectors, gradients = torch.randn(len(one.unique), 4), torch.randn(20, 3, 4)
    assert torch.equal(one.embeddings(vectors), other.embeddings(vectors))
    assert torch.equal(one.sum_gradients(gradients), other.sum_gradients(gradients))


def test_a_batch_without_any_id_needs_no_row() -> None:
    access = access_of(PLACEMENT, bags_of([([], [], []), ([], [], [])]))
    assert len(access.unique) == 0
    assert torch.equal(access.embeddings(torch.empty(0, 4)), torch.zeros(2, 3, 4))
    assert access.sum_gradients(torch.ones(2, 3, 4)).shape == (0, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_keep_their_type(dtype: torch.dtype) -> None:
    access = access_of(PLACEMENT, bags_of([([1, 1, 2], [0], [])]))
    assert access.embeddings(torch.ones(len(access.unique), 4, dtype=dtype)).dtype is dtype
    assert access.sum_gradients(torch.ones(1, 3, 4, dtype=dtype)).dtype is dtype
