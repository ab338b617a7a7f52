"""An import as an anchor in a store: jobs restore it, and a failed import leaves no object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cpr_contract.model import SparseOptimizerSpec, TableSpec
from cpr_contract.requests import ImportRequest
from cpr_contract.spec import ByNameSpec, JobSpec
from cpr_trainer.checkpoint.anchor.pruning import needed_by
from cpr_trainer.checkpoint.restore.dense_loader import load_dense
from cpr_trainer.checkpoint.restore.lineage import dense_start, shard_start
from cpr_trainer.checkpoint.restore.loading import load_shard
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.importing import filling
from cpr_trainer.importing.main import import_model
from cpr_trainer.importing.tensors import SourceError, StoredTensor
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.store import StoreFullError, StoreUnsuitableError
from support.memory_store import MemoryStore
from support.shard_job import small_job

TABLES = (
    TableSpec("user", 300, ids="RowNumber", optimizer=SparseOptimizerSpec("RowWiseAdagrad", 0.1)),
    TableSpec("item", 170, ids="RowNumber", optimizer=SparseOptimizerSpec("Adam", 0.1)),
    TableSpec("shop", 90, ids="RowNumber", dim=2),
)
REQUEST = ImportRequest((), "ranker", (("momentum", "user:sum"),), dense="Initialise")


def job(shards: int = 2, tables: tuple[TableSpec, ...] = TABLES) -> JobSpec:
    spec = small_job(Path("unused"), shards=shards, dim=4)
    return replace(spec, model=replace(spec.model, tables=tables))


def stored(tensors: Mapping[str, Tensor]) -> dict[str, StoredTensor]:
    def opened(name: str, tensor: Tensor) -> StoredTensor:
        return StoredTensor(name, tuple(tensor.shape), tensor.dtype, "file", lambda first, last: tensor[first:last])

    return {name: opened(name, tensor) for name, tensor in tensors.items()}


@pytest.fixture
def source() -> dict[str, Tensor]:
    """Rows that are all different."""
    torch.manual_seed(3)
    rows = {"user": torch.randn(300, 4), "item": torch.randn(170, 4).bfloat16(), "shop": torch.randn(90, 2).half()}
    return {**rows, "momentum": torch.rand(300, 1)}


class Unsuitable(MemoryStore):
    def probe(self, folder: str) -> None:
        assert folder == "import-ranker/probe/"
        raise StoreUnsuitableError("The store lacks what saves need.", "Use another server.")


def test_import_into_an_unsuitable_store_writes_nothing(source: dict[str, Tensor]) -> None:
    store = Unsuitable()
    with pytest.raises(StoreUnsuitableError):
        import_model(store, job(), REQUEST, stored(source))
    assert not store.objects


def restored(store: MemoryStore, spec: JobSpec, key: str, rules: ByNameSpec | None = None) -> dict[str, np.ndarray]:
    """The rows of each table, and of their state, that all shards of a job have which starts from an anchor."""
    spec = replace(spec, snapshots=replace(spec.snapshots, restore_from=key, by_name=rules))
    placement = Placement.of(spec.model, spec.shards)
    found = {
        t.name: np.zeros((t.rows, dim), "f4") for t, dim in zip(spec.model.tables, spec.model.table_dims, strict=True)
    }
    sums = np.zeros(next(table.rows for table in spec.model.tables if table.name == "user"), "f4")
    for index in range(spec.shards):
        local = LocalRows.of(spec, placement, index)
        start = dense_start(store, spec, None)
        load_shard(store, shard_start(store, start, placement, index), local)
        for chunk in placement.rows_of(index):
            slots = np.arange(chunk.first_slot, chunk.first_slot + len(chunk.rows))
            for table, row, slot in zip(chunk.tables, chunk.rows, slots, strict=True):
                ((segment, (inside,)),) = local.arena.parted(np.array([slot]))
                found[spec.model.tables[table].name][row] = segment.rows[inside]
                if spec.model.tables[table].name == "user":
                    sums[row] = segment.state[inside, 0]
                else:
                    assert not segment.state[inside].any()
    return found | {"momentum": sums}


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 64])
def test_shards_of_any_number_restore_every_row_bit_for_bit(
    source: dict[str, Tensor], chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "_CHUNK_BYTES", chunk_bytes)
    store = MemoryStore()
    imported = import_model(store, job(), REQUEST, stored(source))
    before = dict(store.objects)
    with pytest.raises(SourceError, match="There is an import of the name ranker"):
        import_model(store, job(), REQUEST, stored(source))
    assert store.objects == before
    assert imported.key == "import-ranker/gen-0001/dense/group-0001/step-000000000/manifest.json"
    for shards, rules in ((2, None), (3, ByNameSpec(dense="Initialise"))):
        found = restored(store, job(shards), imported.key, rules)
        for name, tensor in source.items():
            assert np.array_equal(found[name].reshape(-1), tensor.float().numpy().reshape(-1)), (name, shards)


def test_import_of_fewer_rows_than_shards_is_restored(source: dict[str, Tensor]) -> None:
    store, request = MemoryStore(), ImportRequest((), "few", missing="Initialise", dense="Initialise")
    few = source["user"][:2]
    key = import_model(store, job(shards=5), request, stored({"user": few})).key
    found = restored(store, job(shards=5), key, ByNameSpec("Initialise", "Fail", "Truncate", dense="Initialise"))
    assert np.array_equal(found["user"][:2], few.numpy())


def test_a_job_takes_one_table_of_an_import_by_name(source: dict[str, Tensor]) -> None:
    store = MemoryStore()
    key = import_model(store, job(), REQUEST, stored(source)).key
    other = job(tables=(TABLES[2], TableSpec("user", 400, ids="RowNumber", optimizer=TABLES[0].optimizer)))
    found = restored(store, other, key, ByNameSpec("Fail", "Ignore", "Truncate"))
    assert np.array_equal(found["user"][:300], source["user"].numpy())
    assert np.array_equal(found["shop"], source["shop"].float().numpy())


def test_dense_network_is_imported_and_missing_layers_have_first_values(source: dict[str, Tensor]) -> None:
    store, spec = MemoryStore(), job()
    first = DenseReplica(spec.model, spec.data.seed).model.state_dict()
    layers = {f"module.{name}": torch.full(value.shape, 0.5) for name, value in first.items() if "bias" in name}
    request = replace(REQUEST, dense="ByName", missing="Initialise")
    imported = import_model(store, spec, request, stored(source | layers))
    assert imported.layers == len(layers) > 0
    spec = replace(spec, snapshots=replace(spec.snapshots, restore_from=imported.key))
    start = dense_start(store, spec, None)
    replica = DenseReplica(spec.model, spec.data.seed + 1)
    replica.load(load_dense(store, start).tensors)
    for name, value in replica.model.state_dict().items():
        assert torch.equal(value, torch.full(value.shape, 0.5) if "bias" in name else first[name])


@pytest.mark.parametrize("last", ["shard-0001/", "dense/"])
def test_failed_import_leaves_no_object(source: dict[str, Tensor], last: str) -> None:
    store = MemoryStore(before_put=lambda key: full(key) if last in key else None)
    with pytest.raises(StoreFullError):
        import_model(store, job(), REQUEST, stored(source))
    assert store.objects == {}


@pytest.mark.parametrize(
    ("tensor", "value", "why"),
    [
        ("shop", torch.nan, "shop has values in its rows 0 to 89 that are infinite or no numbers"),
        ("momentum", torch.inf, "momentum has values in its rows 0 to 299 that are infinite or no numbers"),
        ("momentum", -1e-6, "momentum has negative values in its rows 0 to 299, .* sums of squares"),
        ("bottom.0.weight", torch.nan, r"bottom.0.weight \[.*\] has values that are infinite or no numbers"),
        ("bottom.0.weight", 1e39, r"bottom.0.weight \[.*\] has values that are infinite or no numbers"),
    ],
)
def test_import_of_values_that_no_training_survives_is_refused(
    source: dict[str, Tensor], tensor: str, value: float, why: str
) -> None:
    layers = DenseReplica(job().model, 1).model.state_dict()
    found = source | {name: layer.double() for name, layer in layers.items()}
    found[tensor][-1, -1] = value
    store = MemoryStore()
    with pytest.raises(SourceError, match=why):
        import_model(store, job(), replace(REQUEST, dense="ByName"), stored(found))
    assert store.objects == {}


def test_objects_of_a_killed_import_are_no_anchor_and_are_deleted(source: dict[str, Tensor]) -> None:
    store, spec = MemoryStore(), job()
    store.put("import-ranker/gen-0001/shard-0007/inc-0001/step-000000000/part-00000", b"half")
    store.put("other/gen-0001/shard-0000/inc-0001/step-000000000/part-00000", b"another job's")
    import_model(store, spec, REQUEST, stored(source))
    assert not any("shard-0007" in key for key in store.objects)
    assert any(key.startswith("other/") for key in store.objects)


def test_first_of_two_concurrent_imports_to_commit_gets_the_name(source: dict[str, Tensor]) -> None:
    store, spec = MemoryStore(), job()
    doubled = {name: tensor * 2 for name, tensor in source.items()}

    def overtake(key: str) -> None:
        """Another import begins and ends when the first one is about to write the dense network."""
        if "/dense/" in key:
            store.before_put = anything
            import_model(store, spec, REQUEST, stored(doubled))

    store.before_put = overtake
    with pytest.raises(SourceError, match="There is an import of the name ranker"):
        import_model(store, spec, REQUEST, stored(source))
    key = "import-ranker/gen-0001/dense/group-0001/step-000000000/manifest.json"
    found = restored(store, spec, key)
    assert np.array_equal(found["user"], doubled["user"].numpy())
    assert set(store.objects) == set(needed_by(store, key)), "the other one left nothing"


def test_failed_import_leaves_the_objects_of_a_concurrent_one(source: dict[str, Tensor]) -> None:
    store = MemoryStore()

    def fail_the_other(key: str) -> None:
        """Another import fails when the first one is about to write the dense network."""
        if "/dense/" in key:
            store.before_put = lambda other: full(other) if "/dense/" in other else None
            with pytest.raises(StoreFullError):
                import_model(store, job(), REQUEST, stored(source))
            store.before_put = anything

    store.before_put = fail_the_other
    found = restored(store, job(), import_model(store, job(), REQUEST, stored(source)).key)
    assert np.array_equal(found["user"], source["user"].numpy())


def anything(_key: str) -> None:
    """Accept all objects."""


def full(key: str) -> None:
    """Refuse an object: the store is full."""
    raise StoreFullError(f"The store is full: {key}.", "Make space.")


def test_anchor_is_written_last(source: dict[str, Tensor]) -> None:
    written: list[str] = []
    store = MemoryStore(before_put=written.append)
    assert written.index(import_model(store, job(), REQUEST, stored(source)).key) == len(written) - 1
