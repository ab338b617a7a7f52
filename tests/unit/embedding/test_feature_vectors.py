"""Features over shared tables, against whole tables and autograd."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from cpr_contract.model import ModelSpec
from cpr_trainer.embedding.access import FeatureAccess, as_rows, find_access
from cpr_trainer.embedding.bags import Column
from cpr_trainer.embedding.feature_vectors import Jagged
from cpr_trainer.embedding.placement import Placement
from support.feature_data import FEATURES, bags_of, columns_of_bags, model_of_features


def found_of(model: ModelSpec, columns: list[Column], shards: int = 2) -> tuple[FeatureAccess, Placement]:
    placement = Placement.of(model, shards)
    access = find_access(placement, bags_of(columns, model))
    assert isinstance(access, FeatureAccess)
    return access, placement


def first_tables(model: ModelSpec) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        table.name: torch.randn(table.rows, dim, generator=generator, requires_grad=True)
        for table, dim in zip(model.tables, model.table_dims, strict=True)
    }


def rows_of(access: FeatureAccess, placement: Placement, model: ModelSpec, tables: list[Tensor]) -> list[Tensor]:
    """Return the unique rows of each band, from whole tables."""
    numbers = access.unique.numbers
    of_tables, rows = placement.tables_of(numbers)
    bands = placement.band_of[of_tables]
    return [
        torch.stack([tables[t][r] for t, r, b in zip(of_tables, rows, bands, strict=True) if b == band])
        for band in range(len(model.dims))
    ]


def expected_vectors(columns: list[Column], tables: dict[str, Tensor]) -> dict[str, list[Tensor]]:
    """Return of each feature, sample by sample, its vector, or the vectors of its sequence."""
    expected_bags = {}
    for feature, column in zip(FEATURES, columns, strict=True):
        ends = np.cumsum(column.lengths)
        vectors = tables[feature.table][column.ids.astype(np.int64)]
        if feature.pooling == "Sum" and column.weights is not None:
            vectors = vectors * torch.from_numpy(column.weights)[:, None]
        bags = [vectors[end - size : end] for end, size in zip(ends, column.lengths, strict=True)]
        match feature.pooling:
            case "None":
                expected_bags[feature.name] = bags
            case "Mean":
                expected_bags[feature.name] = [bag.sum(dim=0) / max(len(bag), 1) for bag in bags]
            case _:
                expected_bags[feature.name] = [bag.sum(dim=0) for bag in bags]
    return expected_bags


@pytest.mark.parametrize("one_dim", [True, False])
def test_features_and_their_gradients_are_those_of_whole_tables(one_dim: bool) -> None:  # noqa: FBT001
    model, columns = model_of_features(one_dim=one_dim), columns_of_bags(7, seed=1)
    access, placement = found_of(model, columns)
    tables = first_tables(model)
    bands = rows_of(access, placement, model, [table.detach() for table in tables.values()])
    features = access.embeddings(as_rows(tuple(bands)))
    assert tuple(features) == tuple(feature.name for feature in FEATURES)

    outer = features.map(lambda values: torch.randn(values.shape, generator=torch.Generator().manual_seed(5)))
    total = torch.zeros(())
    for name, expected_bags in expected_vectors(columns, tables).items():
        found, gradient = features[name], outer[name]
        if isinstance(found, Jagged):
            assert isinstance(gradient, Jagged)
            assert found.lengths.tolist() == [len(each) for each in expected_bags]
            torch.testing.assert_close(found.values, torch.cat(expected_bags))
            total = total + (torch.cat(expected_bags) * gradient.values).sum()
        else:
            assert isinstance(gradient, Tensor)
            torch.testing.assert_close(found, torch.stack(expected_bags))
            total = total + (torch.stack(expected_bags) * gradient).sum()
    total.backward()
    gradients = [table.grad if table.grad is not None else torch.zeros_like(table) for table in tables.values()]
    expected = as_rows(tuple(rows_of(access, placement, model, gradients)))
    torch.testing.assert_close(access.sum_gradients(outer), expected)


def test_a_row_is_asked_for_once_by_all_features_of_a_table() -> None:
    model, columns = model_of_features(), columns_of_bags(7, seed=2)
    access, _ = found_of(model, columns)
    pages = {int(each) for column in (columns[1], columns[2], columns[3]) for each in column.ids}
    users, tags = ({int(each) for each in columns[place].ids} for place in (0, 4))
    assert len(access.unique) == len(pages) + len(users) + len(tags)
    assert (np.diff(access.unique.places) > 0).all()


def test_a_sequence_brings_its_weights_and_can_be_padded() -> None:
    model, columns = model_of_features(one_dim=True), columns_of_bags(4, seed=4)
    access, _ = found_of(model, columns)
    features = access.embeddings(torch.randn(len(access.unique), 4))
    history = features["history"]
    assert isinstance(history, Jagged)
    assert history.weights is not None
    assert columns[2].weights is not None
    assert np.array_equal(history.weights.numpy(), columns[2].weights)
    padded, there = history.padded()
    assert padded.shape == (4, int(columns[2].lengths.max()), 4)
    assert torch.equal(padded[there], history.values)
    assert not padded[~there].any()
    assert torch.equal(history.padded_weights()[there], history.weights)
    assert torch.equal(replace(history, weights=None).padded_weights(), there.float())


def test_parts_of_a_slice_make_the_slice() -> None:
    model, columns = model_of_features(), columns_of_bags(9, seed=6)
    access, _ = found_of(model, columns)
    bands = tuple(torch.randn(len(band.unique), dim) for band, dim in zip(access.bands, model.dims, strict=True))
    whole = access.embeddings(bands)
    parts = [whole.part(slice(first, last)) for first, last in ((0, 4), (4, 5), (5, 9))]
    for tensors, expected in zip(zip(*(part.tensors for part in parts), strict=True), whole.tensors, strict=True):
        assert torch.equal(torch.cat(tensors), expected)
    histories, history = [part["history"] for part in parts], whole["history"]
    assert isinstance(history, Jagged)
    assert history.weights is not None
    joined = [
        (each.lengths, each.weights) for each in histories if isinstance(each, Jagged) and each.weights is not None
    ]
    lengths, weights = (torch.cat(each) for each in zip(*joined, strict=True))
    assert torch.equal(lengths, history.lengths)
    assert torch.equal(weights, history.weights)


def test_no_samples_need_no_rows() -> None:
    model = model_of_features()
    access, _ = found_of(model, columns_of_bags(0, seed=1))
    empty = access.embeddings(tuple(torch.empty(0, dim) for dim in model.dims))
    assert len(access.unique) == 0
    assert isinstance(visitor := empty["visitor"], Tensor)
    assert visitor.shape == (0, 4)
    assert isinstance(history := empty["history"], Jagged)
    assert history.padded()[0].shape == (0, 1, 4)


def test_an_access_goes_to_a_device_whole() -> None:
    model = model_of_features()
    access, _ = found_of(model, columns_of_bags(5, seed=1))
    there = access.to(torch.device("meta"))
    tensors = [each for its in (*there.lengths, *there.weights) for each in its if each is not None]
    for band in there.bands:
        tensors += [band.inverse, band.order, band.starts]
        assert band.pooling is not None
        pooling = (band.pooling.offsets, band.pooling.weights, band.pooling.of_ids, band.pooling.of_uses)
        tensors += [each for each in pooling if each is not None]
    assert {each.device.type for each in tensors} == {"meta"}
