"""Tensors with the ids of a dynamic table's rows: found by their names or by the map, and refused where none fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cpr_contract.model import DynamicSpec, ModelSpec, TableSpec
from cpr_trainer.importing.matching import Matches, match
from cpr_trainer.importing.row_keys import IDENTITIES
from cpr_trainer.importing.tensors import SourceError, StoredTensor
from support.shard_job import small_job

USER = TableSpec("user", 5000, ids="Dynamic", hash_seed=7, dynamic=DynamicSpec())
SLOTS = f"model.mc._managed_collision_modules.t_user.{IDENTITIES}"
I64, F32, U64 = torch.int64, torch.float32, torch.uint64


def model(table: TableSpec = USER) -> ModelSpec:
    return replace(small_job(Path("unused")).model, embedding_dim=4, tables=(table,))


def matched(
    tensors: Mapping[str, tuple[torch.dtype | str, tuple[int, ...]]],
    *mapped: tuple[str, str],
    table: TableSpec = USER,
) -> Matches:
    found = {
        name: StoredTensor(name, shape, dtype, "file", lambda _first, _last: torch.zeros(1))
        for name, (dtype, shape) in tensors.items()
    }
    return match(found, model(table), [], mapped, "Fail")


@pytest.mark.parametrize(
    ("weight", "ids", "mapped"),
    [
        ("user", "user.ids", ()),
        ("m.user.weight", "m.user.ids", ()),
        ("model.ebc.embedding_bags.t_user.weight", SLOTS, (("t_user.weight", "user"),)),
        ("user_emb_values", "user_emb_keys", ()),
        ("user.weight", "raw", (("raw", "user:ids"),)),
    ],
)
def test_ids_are_named_after_the_rows_or_mapped(weight: str, ids: str, mapped: tuple[tuple[str, str], ...]) -> None:
    others = {f"mc.item.{IDENTITIES}": (I64, (9, 1)), "item.ids": (I64, (9,)), "item_emb_keys": (I64, (9,))}
    matches = matched({weight: (F32, (6, 4)), ids: (I64, (6,))} | others, *mapped)
    (source,) = matches.tables
    assert source.keys is not None
    assert source.keys.names == (ids, None)
    assert len(matches.unused) == len(others)


@pytest.mark.parametrize("ids", ["user.ids", "user.keys", f"mc.user.{IDENTITIES}"])
def test_ids_of_a_table_that_is_not_dynamic_are_refused(ids: str) -> None:
    static = TableSpec("user", 6, ids="RowNumber")
    kind = U64 if ids == "user.keys" else I64
    with pytest.raises(SourceError, match=f"{ids} is of rows .* table user has the ids RowNumber") as refusal:
        matched({"user.weight": (F32, (6, 4)), ids: (kind, (6,))}, table=static)
    assert "Set its ids in spec.model.tables to Dynamic" in refusal.value.remedy


@pytest.mark.parametrize(
    ("tensors", "mapped", "why"),
    [
        ({"user.ids": (F32, (6,))}, (), "user.ids is of torch.float32, and the ids of table user are integers"),
        ({"user.ids": ("<U8", (6,))}, (), "user.ids is of <U8, and the ids of table user are integers"),
        ({"user.ids": (I64, (5,))}, (), r"user.ids \[5\] has no number for each of the 6 rows of user.weight"),
        ({"user.ids": (I64, (6, 2))}, (), r"user.ids \[6, 2\] has no number for each of the 6 rows"),
        ({"user.keys": (I64, (6,))}, (), "user.keys is of torch.int64, and the keys of table user are uint64"),
        ({"n": (F32, (6,))}, (("n", "user:count"),), "n is of torch.float32, and the counts of table user are int"),
        ({"user.ids": (I64, (6,)), "user.keys": (U64, (6,))}, (), "user has ids in user.ids and keys in user.keys"),
        ({f"{a}.user.{IDENTITIES}": (I64, (6, 1)) for a in "ab"}, (), "Several tensors have the name of the ids"),
    ],
)
def test_unsuitable_ids_are_refused_by_name(
    tensors: dict[str, tuple[torch.dtype | str, tuple[int, ...]]], mapped: tuple[tuple[str, str], ...], why: str
) -> None:
    with pytest.raises(SourceError, match=why):
        matched({"user.weight": (F32, (6, 4))} | tensors, *mapped)


def test_texts_are_imported_by_their_keys() -> None:
    with pytest.raises(SourceError) as refusal:
        matched({"user.weight": (F32, (6, 4)), "user.ids": ("<U8", (6,))})
    assert "XXH64 of each with the seed 7 as uint64, under the name user.keys" in refusal.value.remedy


def test_counts_without_rows_are_refused() -> None:
    with pytest.raises(SourceError, match="n is for the rows of table user, which is not there"):
        matched({"n": (I64, (6,))}, ("n", "user:count"))
