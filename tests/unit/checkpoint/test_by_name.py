"""Start from an anchor of other tables and another network: values taken, and refusals by field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpr_contract.manifests import SavedModel, SavedTable, SavedTensor
from cpr_contract.model import DynamicSpec, ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_contract.spec import ByNameSpec, TableSourceSpec
from cpr_trainer.checkpoint.format.documents import LayoutError
from cpr_trainer.checkpoint.restore.by_name import (
    DenseMapping,
    DenseParts,
    Source,
    map_dense,
    map_tables,
    sources_of,
)

ADAGRAD = SparseOptimizerSpec("Adagrad", 0.1)
LENIENT = ByNameSpec("Initialise", "Ignore", "Fail")
SAVED = SavedModel(
    3,
    (
        SavedTable("users", 100, 8, "Adagrad", "CPR64"),
        SavedTable("pages", 40, 8, "Adagrad", "CPR64"),
        SavedTable("shops", 30, 8, "Adagrad", "RowNumber"),
    ),
    "Adagrad",
    (),
)
KEYED = SavedModel(
    3,
    (
        SavedTable("hashed", 100, 8, "Adagrad", "XXH64"),
        SavedTable("numbers", 9000, 8, "Adagrad", "RowNumber"),
        SavedTable("values", 50, 8, "Adagrad", "Vocabulary", "digest", 40),
        SavedTable("import", 50, 8, "Adagrad", "Vocabulary"),
        SavedTable("dynamic", 8192, 8, "Adagrad", "Dynamic with seed 2"),
    ),
    "Adagrad",
    (),
)


def tables(*names: str, **fields: Any) -> tuple[TableSpec, ...]:
    known = {"users": (100, "CPR64"), "pages": (40, "CPR64"), "shops": (30, "RowNumber")}
    found = (known.get(name, (50, "CPR64")) for name in names)
    return tuple(
        replace(TableSpec(name, rows, ids=ids), **fields)  # type: ignore[arg-type]
        for name, (rows, ids) in zip(names, found, strict=True)
    )


def model(*of: TableSpec) -> ModelSpec:
    return ModelSpec(8, (8,), (1,), of, OptimizerSpec("Adagrad", 0.1), ADAGRAD)


def sources(of: tuple[TableSpec, ...], rules: ByNameSpec = LENIENT) -> tuple[Source | None, ...]:
    mapping = map_tables(SAVED, model(*of), rules, "key")
    assert (mapping.seed, mapping.tables) == (3, SAVED.tables)
    return mapping.sources


SAME = tables("users", "pages", "shops")
RENAME, BOTH = TableSourceSpec("visitors", "users"), TableSourceSpec("users", "users")
RENAMED = tables("users") + tables("visitors", rows=100)
TAKEN: dict[str, tuple[tuple[TableSpec, ...], ByNameSpec, tuple[Source | None, ...]]] = {
    # the job's tables, its rules, and where each table starts from
    "the same, by the strictest rules": (SAME, ByNameSpec(), (Source(0, 100), Source(1, 40), Source(2, 30))),
    "any order, and one that is new": (
        tables("cities", "shops", "users"),
        LENIENT,
        (None, Source(2, 30), Source(0, 100)),
    ),
    "another name, by the map": (RENAMED[1:], replace(LENIENT, map=(RENAME,)), (Source(0, 100),)),
    "given away by the map, and not taken by its own name": (
        RENAMED,
        replace(LENIENT, map=(RENAME,)),
        (None, Source(0, 100)),
    ),
    "given to both by the map": (RENAMED, replace(LENIENT, map=(RENAME, BOTH)), (Source(0, 100), Source(0, 100))),
}


@pytest.mark.parametrize(("requested", "rules", "expected"), TAKEN.values(), ids=TAKEN)
def test_tables_start_from_those_that_names_and_map_give(
    requested: tuple[TableSpec, ...], rules: ByNameSpec, expected: tuple[Source | None, ...]
) -> None:
    assert sources(requested, rules) == expected


def test_sources_of_a_model_are_its_own_tables() -> None:
    assert sources_of(model(*SAME)) == sources(SAME, ByNameSpec())


@pytest.mark.parametrize(
    ("name", "rows", "resized", "expected"),
    [
        ("users", 300, "Rehash", Source(0, 100, repeated=True)),
        ("users", 102_400, "Rehash", Source(0, 100, repeated=True)),
        ("users", 100, "Rehash", Source(0, 100)),
        ("shops", 45, "Truncate", Source(2, 30)),
        ("shops", 12, "Truncate", Source(2, 30)),
        ("shops", 30, "Truncate", Source(2, 30)),
    ],
)
def test_resized_table_follows_the_rules_by_name(name: str, rows: int, resized: Any, expected: Source) -> None:
    requested = tables(name, rows=rows)
    assert sources(requested, replace(LENIENT, resized=resized)) == (expected,)
    of_one = replace(LENIENT, map=(TableSourceSpec(name, name, resized),))
    assert sources(requested, of_one) == (expected,), "the map's rule goes before that of all tables"


def start_of(table: TableSpec, source: str, resized: Any = "Fail") -> Source | None:
    rules = replace(LENIENT, map=(TableSourceSpec(table.name, source, resized),))
    (found,) = map_tables(KEYED, model(table), rules, "key").sources
    return found


DYNAMIC = TableSpec("here", 8192, ids="Dynamic", dynamic=DynamicSpec(), hash_seed=2)


@pytest.mark.parametrize(
    ("source", "rows", "resized", "expected"),
    [
        ("dynamic", 8192, "Fail", Source(4, 8192)),
        ("dynamic", 4097, "Fail", Source(4, 8192)),
        ("dynamic", 8193, "Rehash", Source(4, 8192, inserted=True)),
        ("dynamic", 4096, "Rehash", Source(4, 8192, inserted=True)),
        ("numbers", 4096, "Fail", Source(1, 9000, inserted=True)),
        ("values", 4096, "Truncate", Source(2, 50, inserted=True)),
    ],
)
def test_dynamic_table_starts_from_ids_with_keys(source: str, rows: int, resized: Any, expected: Source) -> None:
    assert start_of(replace(DYNAMIC, rows=rows), source, resized) == expected


@pytest.mark.parametrize(
    ("table", "source", "resized", "message", "remedy"),
    [
        (DYNAMIC, "hashed", "Fail", "tables[0].ids: table hashed of the anchor has ids of XXH64", "Set it to XXH64,"),
        (DYNAMIC, "hashed", "Rehash", "and ids may share a row, so no row has a key", "Set it to XXH64,"),
        (DYNAMIC, "import", "Fail", "and its values are not recorded, so no row has a key", "Set it to Vocabulary,"),
        (replace(DYNAMIC, hash_seed=1), "dynamic", "Fail", "has ids of Dynamic with seed 2", "Set it to Dynamic with"),
        (
            TableSpec("here", 8192),
            "dynamic",
            "Fail",
            "has ids of Dynamic with seed 2",
            "Set it to Dynamic with seed 2,",
        ),
        (
            replace(DYNAMIC, rows=8193),
            "dynamic",
            "Fail",
            "tables[0].rows: table dynamic",
            "Set it to 8192, or spec.res",
        ),
        (replace(DYNAMIC, rows=4096), "dynamic", "Fail", "has 8192, here has 4096.", "spec.restoreFrom.resized to Reh"),
        (
            replace(DYNAMIC, rows=8193),
            "dynamic",
            "Truncate",
            "belong to ids for a time",
            "Set spec.restoreFrom.resized",
        ),
        (
            replace(DYNAMIC, dim=4),
            "numbers",
            "Fail",
            "tables[0].dim: table numbers of the anchor has 8",
            "Set it to 8,",
        ),
    ],
)
def test_ids_without_keys_and_other_capacities_are_refused(
    table: TableSpec, source: str, resized: Any, message: str, remedy: str
) -> None:
    with pytest.raises(LayoutError) as caught:
        start_of(table, source, resized)
    assert message in caught.value.message
    assert remedy in caught.value.remedy


REFUSED = [
    (tables("users", "pages", "shops", "cities"), ByNameSpec(), "spec.restoreFrom.missing: key has no table cities"),
    (tables("users", "pages"), ByNameSpec(), "spec.restoreFrom.extra: key also has table shops"),
    (
        tables("users"),
        replace(LENIENT, map=(TableSourceSpec("users", "people"),)),
        "spec.restoreFrom.map: table users shall start from people, and key has no such table",
    ),
    (tables("pages", ids="XXH64"), LENIENT, "spec.model.tables[0].ids: table pages of the anchor has ids of CPR64"),
    (tables("pages", dim=4), LENIENT, "spec.model.tables[0].dim: table pages of the anchor has 8, pages has 4"),
    (
        tables("pages", optimizer=SparseOptimizerSpec("SGD", 0.1)),
        LENIENT,
        "spec.model.tables[0].optimizer: table pages of the anchor was trained by Adagrad, pages has SGD",
    ),
    (tables("users", rows=200), LENIENT, "spec.model.tables[0].rows: table users of the anchor has 100"),
    (tables("users", rows=250), replace(LENIENT, resized="Rehash"), "is not a multiple of it"),
    (tables("users", rows=50), replace(LENIENT, resized="Rehash"), "is not a multiple of it"),
    (tables("users", rows=102_500), replace(LENIENT, resized="Rehash"), "is more than 1024 times as many"),
    (tables("shops", rows=60), replace(LENIENT, resized="Rehash"), "its ids are RowNumber"),
    (tables("users", rows=50), replace(LENIENT, resized="Truncate"), "its ids are hashed"),
]


@pytest.mark.parametrize(("requested", "rules", "message"), REFUSED, ids=[each[2][:60] for each in REFUSED])
def test_mismatch_is_refused_by_field_with_the_remedy(
    requested: tuple[TableSpec, ...], rules: ByNameSpec, message: str
) -> None:
    with pytest.raises(LayoutError) as caught:
        sources(requested, rules)
    assert message in caught.value.message
    assert caught.value.remedy.endswith(".")
    assert caught.value.reason == "LayoutMismatch"


def test_long_list_of_mismatches_is_cut() -> None:
    with pytest.raises(LayoutError, match=r"n0, n1, n2, n3, n4, n5, n6, n7, \.\.\."):
        sources(tables(*(f"n{i}" for i in range(20))), replace(LENIENT, missing="Fail"))


A, B, C = SavedTensor("a", (2, 3)), SavedTensor("b", (4,)), SavedTensor("c", ())
MEAN = SavedTensor("mean", (4,))


def parts(*parameters: SavedTensor, optimizer: str = "Adam", buffers: tuple[SavedTensor, ...] = ()) -> DenseParts:
    return DenseParts(optimizer, parameters, buffers)


def test_parameters_are_found_by_name_and_shape_wherever_they_lie() -> None:
    old, new = parts(A, B, C, buffers=(MEAN,)), parts(C, SavedTensor("d", (5,)), A, buffers=(MEAN,))
    assert map_dense(old, new, LENIENT, "key") == DenseMapping(((10, 0, 1), (0, 6, 6)), ("mean",))
    assert map_dense(old, old, ByNameSpec(), "key") == DenseMapping(((0, 0, 6), (6, 6, 4), (10, 10, 1)), ("mean",))


def test_a_parameter_of_another_shape_is_missing_here_and_extra_there() -> None:
    wider = SavedTensor("a", (2, 4))
    assert map_dense(parts(A, B), parts(wider, B), LENIENT, "key") == DenseMapping(((6, 8, 4),), ())
    with pytest.raises(LayoutError, match=r"missing: the dense network of key has no a \[2, 4\]"):
        map_dense(parts(A, B), parts(wider, B), ByNameSpec(extra="Ignore"), "key")
    with pytest.raises(LayoutError, match=r"extra: the dense network of key also has a \[2, 3\], mean \[4\]"):
        map_dense(parts(A, B, buffers=(MEAN,)), parts(wider, B), ByNameSpec(missing="Initialise"), "key")


def test_a_state_of_another_optimizer_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"spec.model.denseOptimizer: key has a dense state of Adam, .* of SGD"):
        map_dense(parts(A), parts(A, optimizer="SGD"), LENIENT, "key")
