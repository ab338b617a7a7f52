"""Rows of other systems in a dynamic table: jobs restore them by the keys of their ids, in any number of shards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cpr_contract.model import PAGE_SLOTS, DynamicSpec, SparseOptimizerSpec, TableSpec
from cpr_contract.requests import Imported, ImportRequest
from cpr_contract.spec import JobSpec
from cpr_trainer.importing import filling, row_keys
from cpr_trainer.importing.main import import_model
from cpr_trainer.importing.row_keys import IDENTITIES, keys_of
from cpr_trainer.importing.tensors import SourceError, StoredTensor
from cprjob_serving.hashes import U64
from support.memory_store import MemoryStore
from support.restored_entries import restored
from support.shard_job import small_job

SEED = 7
ADAGRAD = SparseOptimizerSpec("RowWiseAdagrad", 0.1)
USER = TableSpec(
    "user",
    3 * PAGE_SLOTS,
    ids="Dynamic",
    hash_seed=SEED,
    optimizer=ADAGRAD,
    # Halved at each step, so that a count as of another step than its own is another one.
    dynamic=DynamicSpec(min_steps=2, score="Pushes", halving_steps=1, ttl_steps=5),
)
TABLES = (TableSpec("shop", 90, ids="RowNumber", optimizer=ADAGRAD), USER)
REQUEST = ImportRequest((), "ranker", dense="Initialise")
#: The names that TorchRec's modules give.
WEIGHT = "_embedding_module.embedding_bags.user.weight"
SLOTS = f"_managed_collision_collection._managed_collision_modules.user.{IDENTITIES}"
SHOP = {"shop.weight": torch.rand(90, 4)}


def job(shards: int = 2, table: TableSpec = USER) -> JobSpec:
    spec = small_job(Path("unused"), shards=shards, dim=4)
    return replace(spec, model=replace(spec.model, tables=(TABLES[0], table)))


def imported(store: MemoryStore, spec: JobSpec, tensors: dict[str, Tensor], *mapped: tuple[str, str]) -> Imported:
    def opened(name: str, tensor: Tensor) -> StoredTensor:
        return StoredTensor(name, tuple(tensor.shape), tensor.dtype, "file", lambda first, last: tensor[first:last])

    found = {name: opened(name, tensor) for name, tensor in {**SHOP, **tensors}.items()}
    return import_model(store, spec, replace(REQUEST, map=mapped), found)


def hashed(ids: Tensor) -> list[int]:
    keys: U64 = keys_of(ids.numpy(), SEED)
    return keys.tolist()  # type: ignore[no-any-return]


def test_keys_of_integers_are_those_of_the_same_ids_in_data() -> None:
    """docs/hashing.md has these vectors."""
    largest = np.array([2**64 - 1], np.uint64)
    assert keys_of(np.array([42]), 7).tolist() == [0x0F06100D2AA836E8]
    assert keys_of(np.array([-1, 7], np.int64), 0).tolist() == [0x3D62C7C8A7A6E2D8, 0x184A52B6A00D7AB7]
    assert keys_of(largest, 7).tolist() == [0x80DF2FA410928B9B]


@pytest.mark.parametrize("chunk", [(1 << 20, 1 << 20), (64, 7)])
def test_slots_of_mpzch_are_restored_by_the_keys_of_their_ids(
    chunk: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "_CHUNK_BYTES", chunk[0])
    monkeypatch.setattr(row_keys, "_ROWS_AT_ONCE", chunk[1])
    torch.manual_seed(3)
    ids = torch.randperm(10**6)[:600].reshape(-1, 1)
    ids[::3] = -1
    rows, sums, counts = torch.randn(600, 4), torch.rand(600), torch.randint(1, 90, (600, 1))
    store = MemoryStore()
    tensors = {WEIGHT: rows, SLOTS: ids, "momentum1": sums, "_hash_zch_runtime_meta": counts}
    mapped = ("momentum1", "user:sum"), ("_hash_zch_runtime_meta", "user:count")
    result = imported(store, job(), tensors, *mapped)
    assert result.tables[1].row_ids == SLOTS
    assert (result.tables[1].rows, result.tables[1].dropped) == (400, 0)
    used = ids[:, 0] != -1
    values = zip(rows[used].tolist(), sums[used].tolist(), counts[used, 0].tolist(), strict=True)
    expected = dict(zip(hashed(ids[used, 0]), values, strict=True))
    assert restored(store, job(), result.key) == expected
    assert restored(store, job(shards=3), result.key) == expected


def test_rows_of_a_table_of_bfloat16_are_rounded_to_nearest() -> None:
    narrow, store = replace(USER, precision="bf16"), MemoryStore()
    rows = torch.randn(50, 4)
    result = imported(store, job(table=narrow), {"user.weight": rows})
    found = restored(store, job(table=narrow), result.key)
    assert [found[key][0] for key in hashed(torch.arange(50))] == rows.bfloat16().float().tolist()


def test_row_of_a_plain_table_has_the_id_of_its_number() -> None:
    store, rows = MemoryStore(), torch.randn(50, 4)
    result = imported(store, job(), {"user.weight": rows})
    assert (result.tables[1].row_ids, result.tables[1].row_keys) == (None, None)
    found = restored(store, job(), result.key)
    assert [found[key] for key in hashed(torch.arange(50))] == [(row, 0.0, 1) for row in rows.tolist()]


def test_keys_are_taken_unchanged() -> None:
    store, rows = MemoryStore(), torch.randn(3, 4)
    keys = torch.from_numpy(np.array([5, 2**64 - 1, 2**63], np.uint64))
    result = imported(store, job(), {"user.weight": rows, "user.keys": keys})
    assert (result.tables[1].row_ids, result.tables[1].row_keys) == (None, "user.keys")
    found = restored(store, job(), result.key)
    assert {key: row for key, (row, _, _) in found.items()} == dict(zip(keys.tolist(), rows.tolist(), strict=True))


def test_ids_with_the_highest_counts_fit_and_others_are_counted() -> None:
    small = replace(USER, rows=2 * PAGE_SLOTS)
    ids = torch.randperm(10**6)[:9000]
    counts = torch.ones(9000, dtype=torch.int64)
    counts[:3000] = 9
    counts[:2] = torch.tensor([0, 2**40])
    tensors = {"user.weight": torch.rand(9000, 4), "user.ids": ids, "freq": counts}
    found = []
    for shards in (1, 2):
        store = MemoryStore()
        result = imported(store, job(shards, small), tensors, ("freq", "user:count"))
        found.append(restored(store, job(shards, small), result.key))
        assert result.tables[1].rows == len(found[-1])
        assert result.tables[1].rows + result.tables[1].dropped == 9000
    assert found[0] == found[1]
    assert 8000 < len(found[0]) <= 2 * PAGE_SLOTS
    often = hashed(ids[2:3000])
    assert [found[0][key][2] for key in often] == [9] * len(often)
    assert found[0][hashed(ids[1:2])[0]][2] == 2**32 - 2, "counts are of 32 bits"


@pytest.mark.parametrize(
    ("ids", "counts", "why"),
    [
        ([5, 8, 5], [1, 1, 1], "user.ids has one id in its rows 0 and 2"),
        ([5, 8, 6], [1, -1, 1], "freq has negative values in its rows 0 to 2"),
    ],
)
def test_entries_that_no_step_leaves_are_refused(ids: list[int], counts: list[int], why: str) -> None:
    store = MemoryStore()
    tensors = {"user.weight": torch.rand(3, 4), "user.ids": torch.tensor(ids), "freq": torch.tensor(counts)}
    with pytest.raises(SourceError, match=why):
        imported(store, job(), tensors, ("freq", "user:count"))
    assert store.objects == {}


def test_import_of_a_dynamic_table_alone_has_a_shard_for_each_page_at_most() -> None:
    store, alone = MemoryStore(), job(shards=5)
    alone = replace(alone, model=replace(alone.model, tables=(USER,)))
    rows = torch.randn(20, 4)
    result = import_model(
        store,
        alone,
        REQUEST,
        {"user": StoredTensor("user", (20, 4), torch.float32, "file", lambda first, last: rows[first:last])},
    )
    assert len(restored(store, replace(alone, shards=3), result.key)) == 20
