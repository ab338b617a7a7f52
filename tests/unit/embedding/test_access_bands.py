"""The rows of a batch where tables have several dims: as each dim by itself has them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cpr_trainer.embedding.access import BandedAccess, find_access, single_tensor
from cpr_trainer.embedding.bags import Bags, Column
from cpr_trainer.embedding.placement import Placement

ROWS, BANDS, DIMS = (70, 5, 400, 33), (0, 1, 0, 2), (4, 2, 7)
SAMPLES = 60


def ids_of(rng: np.random.Generator) -> np.ndarray:
    return np.stack([rng.integers(0, rows, SAMPLES) for rows in ROWS], axis=1)


def bags_of(rng: np.random.Generator) -> Bags:
    columns = []
    for rows in ROWS:
        lengths = rng.integers(0, 4, SAMPLES)
        columns.append(Column(rng.integers(0, rows, lengths.sum()).astype(np.int32), lengths))
    return Bags.of_columns(columns, np.array([True, False, False, True]))


def weights_of(rng: np.random.Generator) -> list[torch.Tensor]:
    return [torch.from_numpy(rng.standard_normal((rows, DIMS[band]))) for rows, band in zip(ROWS, BANDS, strict=True)]


def found_of(placement: Placement, ids: np.ndarray | Bags) -> BandedAccess:
    access = find_access(placement, ids)
    assert isinstance(access, BandedAccess)
    return access


def vectors_of(access: BandedAccess, placement: Placement, weights: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return the result of lookups: of each band, in the order of the rows of all shards."""
    tables, rows = placement.tables_of(access.unique.numbers)
    found = []
    for band, dim in enumerate(DIMS):
        mine = [weights[t][r] for t, r in zip(tables.tolist(), rows.tolist(), strict=True) if BANDS[t] == band]
        found.append(torch.stack(mine) if mine else torch.empty(0, dim, dtype=torch.float64))
    return tuple(found)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("bags", [False, True])
def test_embeddings_and_gradients_are_those_of_torch(shards: int, bags: bool) -> None:  # noqa: FBT001
    rng, placement = np.random.default_rng(5), Placement(ROWS, shards, BANDS)
    ids = bags_of(rng) if bags else ids_of(rng)
    weights = [weight.requires_grad_() for weight in weights_of(rng)]
    access = found_of(placement, ids)
    with torch.no_grad():
        embeddings = access.embeddings(vectors_of(access, placement, weights))
    outer = [torch.from_numpy(rng.standard_normal(tuple(each.shape))) for each in embeddings]
    for table, (found, gradient) in enumerate(zip(embeddings, outer, strict=True)):
        reference = pooled(weights[table], ids, table)
        torch.testing.assert_close(found, reference.detach())
        assert found.is_contiguous()
        reference.backward(gradient)
    summed = access.sum_gradients(tuple(outer))
    expected = vectors_of(access, placement, [weight.grad for weight in weights])
    for found, reference in zip(summed, expected, strict=True):
        torch.testing.assert_close(found, reference)


def pooled(weight: torch.Tensor, ids: np.ndarray | Bags, table: int) -> torch.Tensor:
    if not isinstance(ids, Bags):
        return weight[ids[:, table]]
    parts = np.split(ids.ids.astype(np.int64), ids.offsets[1:-1])[table :: len(ROWS)]
    sums = [weight[part].sum(dim=0) for part in parts]
    return torch.stack(
        [each / max(len(part), 1) if ids.means[table] else each for each, part in zip(sums, parts, strict=True)]
    )


@pytest.mark.parametrize("bags", [False, True])
def test_bands_of_one_dim_are_one_block_as_without_bands(bags: bool) -> None:  # noqa: FBT001
    rng, single, banded = np.random.default_rng(5), Placement(ROWS, 2), Placement(ROWS, 2, (0, 1, 0, 1))
    ids = bags_of(rng) if bags else ids_of(rng)
    weights = [torch.from_numpy(rng.standard_normal((rows, 4))) for rows in ROWS]
    whole, access = find_access(single, ids), found_of(banded, ids)

    def vectors(placement: Placement, numbers: np.ndarray) -> torch.Tensor:
        pairs = zip(*placement.tables_of(numbers), strict=True)
        return torch.stack([weights[table][row] for table, row in pairs])

    bands = tuple(vectors(banded, access.unique.of_band(access.unique.numbers, band)) for band in (0, 1))
    expected = single_tensor(whole.embeddings(vectors(single, whole.unique.numbers)))
    assert torch.equal(single_tensor(access.embeddings(bands)), expected)
    outer = torch.from_numpy(rng.standard_normal(tuple(expected.shape)))
    sums = dict(zip(whole.unique.numbers.tolist(), whole.sum_gradients(outer), strict=True))
    for band, found in enumerate(access.sum_gradients(outer)):
        for number, gradient in zip(access.unique.of_band(access.unique.numbers, band).tolist(), found, strict=True):
            torch.testing.assert_close(gradient, sums[number])


@pytest.mark.parametrize("shards", [1, 3])
def test_rows_lie_shard_by_shard_and_band_by_band(shards: int) -> None:
    placement = Placement(ROWS, shards, BANDS)
    rows = find_access(placement, ids_of(np.random.default_rng(6))).unique
    assert (np.diff(rows.places) > 0).all()
    bands = placement.band_of[placement.tables_of(rows.numbers)[0]]
    for band in range(3):
        for shard, cell in enumerate(rows.cells(band)):
            assert (bands[cell] == band).all()
            assert (placement.locate(rows.numbers[cell])[0] == shard).all()
        assert np.array_equal(rows.of_band(rows.numbers, band), rows.numbers[bands == band])
    ends = rows.extents(DIMS)
    assert ends[-1] == sum(DIMS[band] for band in bands)
    late = np.arange(len(rows)) % 3 == 0
    selected = rows.select(late)
    assert np.array_equal(selected.numbers, rows.numbers[late])
    assert all(
        np.array_equal(selected.of_band(selected.numbers, b), selected.numbers[bands[late] == b]) for b in range(3)
    )


def test_no_samples_need_no_rows() -> None:
    access = found_of(Placement(ROWS, 2, BANDS), np.empty((0, 4), np.int64))
    empty = access.embeddings(tuple(torch.empty(0, dim) for dim in DIMS))
    assert [tuple(each.shape) for each in empty] == [(0, 4), (0, 2), (0, 4), (0, 7)]
    assert [tuple(each.shape) for each in access.sum_gradients(empty)] == [(0, 4), (0, 2), (0, 7)]


def test_several_tensors_are_never_taken_for_one() -> None:
    with pytest.raises(TypeError, match="2 tensors"):
        single_tensor((torch.zeros(1), torch.zeros(1)))


@pytest.mark.parametrize("bags", [False, True])
def test_an_access_goes_to_a_device_whole(bags: bool) -> None:  # noqa: FBT001
    rng = np.random.default_rng(5)
    access = found_of(Placement(ROWS, 2, BANDS), bags_of(rng) if bags else ids_of(rng))
    there = access.to(torch.device("meta"))
    assert there.unique is access.unique, "shards are asked from the CPU"
    for band in there.bands:
        tensors = [band.inverse, band.order, band.starts]
        if band.pooling is not None:
            tensors += [each for each in (band.pooling.offsets, band.pooling.weights) if each is not None]
        assert {each.device.type for each in tensors} == {"meta"}
        assert (band.pooling is None) != bags
