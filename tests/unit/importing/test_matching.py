"""Tensors match tables and layers by name or by the map; errors name a remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cpr_contract.manifests import SavedTensor
from cpr_contract.model import SparseOptimizerSpec, TableSpec
from cpr_trainer.importing.matching import Matches, match
from cpr_trainer.importing.tensors import SourceError, StoredTensor
from support.shard_job import small_job

MODEL = replace(
    small_job(Path("unused")).model,
    embedding_dim=4,
    tables=(
        TableSpec("user", 50, ids="RowNumber", optimizer=SparseOptimizerSpec("RowWiseAdagrad", 0.1)),
        TableSpec("shop", 20, ids="XXH64", dim=2, optimizer=SparseOptimizerSpec("SGD", 0.1)),
    ),
)
LAYER = SavedTensor("top.0.weight", (3, 5))
WHOLE = {"user.weight": (50, 4), "shop.weight": (20, 2), "top.0.weight": (3, 5)}


def found(shapes: Mapping[str, tuple[int, ...]], dtype: Any = torch.float32) -> dict[str, StoredTensor]:
    return {
        name: StoredTensor(name, shape, dtype, "file", lambda _first, _last: torch.zeros(1))
        for name, shape in shapes.items()
    }


def matched(shapes: Mapping[str, tuple[int, ...]], *mapped: tuple[str, str], **changes: Any) -> Matches:
    given: dict[str, Any] = {"model": MODEL, "dense": [LAYER], "missing": "Fail", "dtype": torch.float32} | changes
    return match(found(shapes, given["dtype"]), given["model"], given["dense"], mapped, given["missing"])


def weights(matches: Matches) -> dict[str, str]:
    tables = {MODEL.tables[each.place].name: each.weight.name for each in matches.tables}
    return tables | {name: layer.name for name, layer in matches.dense.items()}


@pytest.mark.parametrize(
    ("user", "layer"),
    [
        ("user", "top.0.weight"),
        ("user.weight", "module.top.0.weight"),
        ("sparse_arch.embedding_bag_collection.embedding_bags.user.weight", "model._orig_mod.top.0.weight"),
        ("_dmp_wrapped_module.module.ec.embeddings.user.weight", "_dmp_wrapped_module.module.top.0.weight"),
    ],
)
def test_names_of_torch_and_torchrec_and_their_wrappers(user: str, layer: str) -> None:
    matches = matched({user: (50, 4), "emb.shop.weight": (20, 2), layer: (3, 5), "over.bias": (3,)})
    assert weights(matches) == {"user": user, "shop": "emb.shop.weight", "top.0.weight": layer}
    assert matches.unused == ("over.bias [3]",)


def test_mapped_tensors_precede_names() -> None:
    shapes = WHOLE | {"bags.t_user.weight": (60, 4), "opt.bags.t_user.weight.t_user.momentum1": (60,)}
    stated = (("t_user.weight", "user"), ("momentum1", "user:sum"))
    matches = matched(shapes, *stated)
    assert weights(matches)["user"] == "bags.t_user.weight"
    assert [each.sums.name for each in matches.tables if each.sums] == ["opt.bags.t_user.weight.t_user.momentum1"]
    assert matches.unused == ("user.weight [50, 4]",)


def test_missing_tensors_are_refused_and_all_named() -> None:
    shapes: dict[str, tuple[int, ...]] = {"users.weight": (50, 4), "shop.weight": (20, 2), "top.0.weight": (3, 6)}
    with pytest.raises(SourceError) as refusal:
        matched(shapes)
    assert refusal.value.message == (
        "The source has no table user, top.0.weight [3, 5] (but torch.float32 [3, 6]); "
        "it has users.weight [50, 4], top.0.weight [3, 6]."
    )
    assert "--map TENSOR=NAME" in refusal.value.remedy
    matches = matched(shapes, missing="Initialise")
    assert weights(matches) == {"shop": "shop.weight"}
    assert matches.missing_tables == ("user",)
    assert matches.missing_layers == ("top.0.weight [3, 5] (but torch.float32 [3, 6])",)


def test_source_without_any_table_is_always_refused() -> None:
    with pytest.raises(SourceError, match="no table user, table shop; it has users") as refusal:
        matched({"users": (50, 4), "top.0.weight": (3, 5)}, missing="Initialise")
    assert "--missing" not in refusal.value.remedy


@pytest.mark.parametrize(
    ("shapes", "mapped", "message"),
    [
        ({"user.weight": (50, 8)}, (), r"user.weight \[50, 8\] has vectors of 8 values, and table user of 4"),
        ({"user.weight": (50,)}, (), r"user.weight \[50\] is for table user, and has no rows of vectors"),
        ({"ema.user.weight": (50, 4)}, (), "Several tensors have the name of table user: user.weight, ema.user"),
        ({}, (("nowhere", "user"),), "--map nowhere=user: there is no such tensor"),
        ({"a.b.w": (50, 4), "c.b.w": (50, 4)}, (("b.w", "user"),), "these end so: a.b.w, c.b.w"),
        ({}, (("user.weight", "users"),), "the job has no table and no layer users"),
        ({"s": (50,)}, (("user.weight", "user"), ("s", "user")), "--map names two tensors for user"),
        ({"s": (49,)}, (("s", "user:sum"),), r"s \[49\] has no number for each of the 50 rows"),
        ({"s": (20,)}, (("s", "shop:sum"),), "Table shop is trained by SGD, and :sum is for RowWiseAdagrad"),
    ],
)
def test_unsuitable_tensor_is_refused_by_name(
    shapes: dict[str, tuple[int, ...]], mapped: tuple[tuple[str, str], ...], message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        matched(WHOLE | shapes, *mapped)


def test_hashed_ids_are_refused_with_the_reason() -> None:
    model = replace(MODEL, tables=(replace(MODEL.tables[0], ids="CPR64"), MODEL.tables[1]))
    with pytest.raises(SourceError, match=r"user has hashed ids \(CPR64\), so its rows are other ids'"):
        matched(WHOLE, model=model)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, "F8_E4M3"])
def test_other_types_than_floats_are_refused(dtype: torch.dtype | str) -> None:
    with pytest.raises(SourceError, match="not one of float32, float16, bfloat16"):
        matched(WHOLE, dtype=dtype)
