"""Serving encodes a row as training does, and hashes are those that their authors publish."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cpr_contract.model import DynamicSpec, FeatureSpec, Ids, TableSpec
from cpr_contract.spec import ColumnsSpec, DataSpec
from cpr_trainer.data.open import open_dataset
from cpr_trainer.embedding.bags import Bags
from cpr_trainer.export.model_folder import transform_of
from cpr_trainer.store import Uris
from cprjob_serving.hashes import Cells, hashes
from cprjob_serving.transform import EncodeError, Feature, Numeric, Table, Transform, dense_of, ids_of
from support.plain_batches import single_ids
from support.serving import STORE, serving_job

TABLES = (
    TableSpec("user", 1000, ids="XXH64", hash_seed=7),
    TableSpec("item", 300, dim=2),
    TableSpec("site", 90, ids="RowNumber", out_of_range="DefaultRow"),
    TableSpec("place", 70, ids="Murmur3", hash_seed=3),
    TableSpec("visitor", 80, ids="Dynamic", hash_seed=5, dynamic=DynamicSpec()),
)
FEATURES = (
    FeatureSpec("user", "user_id", "user"),
    FeatureSpec("site", "site", "site"),
    FeatureSpec("item", "item_id", "item"),
    FeatureSpec("seen", "seen", "item", "None", 3),
    FeatureSpec("liked", "liked", "item", "Sum", None, "stars"),
    FeatureSpec("places", "places", "place", "Mean", 2),
    FeatureSpec("sites", "sites", "site", "Sum"),
    FeatureSpec("visitor", "user_id", "visitor"),
    FeatureSpec("visitors", "seen", "visitor", "None", 3),
)


def some_rows(count: int, seed: int) -> pa.Table:
    random = np.random.default_rng(seed)

    def perhaps(value: object) -> object:
        return None if random.random() < 1 / 8 else value

    def ids(most: int) -> list[object] | None:
        found = [perhaps(int(each)) for each in random.integers(0, most, random.integers(0, 7))]
        return found if random.random() > 1 / 8 else None

    liked = [ids(10**6) for _ in range(count)]
    return pa.table(
        {
            "click": pa.array(random.integers(0, 2, count)),
            "views": pa.array([perhaps(int(each)) for each in random.integers(-3, 10**6, count)], pa.int64()),
            "price": pa.array([perhaps(float(each)) for each in random.normal(size=count)], pa.float64()),
            "user_id": pa.array([perhaps(f"é{each:x}" * int(each % 9)) for each in random.integers(0, 10**9, count)]),
            "item_id": pa.array([perhaps(int(each)) for each in random.integers(-(2**62), 2**62, count)], pa.int64()),
            "site": pa.array([perhaps(int(each)) for each in random.integers(-5, 120, count)], pa.int64()),
            "seen": pa.array([ids(10**6) for _ in range(count)], pa.list_(pa.int64())),
            "liked": pa.array(liked, pa.list_(pa.int64())),
            "stars": pa.array(
                [each and [float(k) for k in range(len(each))] for each in liked], pa.list_(pa.float32())
            ),
            "places": pa.array(
                [[f"{each:x}" for each in random.integers(0, 99, random.integers(0, 5))] for _ in range(count)]
            ),
            "sites": pa.array([ids(200) for _ in range(count)], pa.list_(pa.int64())),
        }
    )


def columns(table: pa.Table) -> dict[str, list[Any]]:
    return {name: table.column(name).to_pylist() for name in table.column_names}


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_encoded_as_training_encodes_them(tmp_path: Path, seed: int) -> None:
    table = some_rows(400, seed)
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=150)
    named = ColumnsSpec(("click",), ("views",), ("price",), ())
    data = DataSpec("Parquet", f"file://{tmp_path}/rows.parquet", 1, None, 64, 7, 0, columns=named)
    trained = serving_job(data, TABLES, FEATURES, 2)
    batch = open_dataset(data, trained.model, Uris(STORE)).take(np.arange(400))
    assert isinstance(batch.ids, Bags)
    transform = Transform.of_json(transform_of(trained).to_json())
    given = columns(table)
    assert dense_of(transform, given).tobytes() == batch.dense.tobytes()
    for place, feature in enumerate(transform.features):
        expected, found = batch.ids.of(np.array([place])), ids_of(transform, feature, given)
        assert found.rows.tolist() == expected.ids.tolist(), feature.name
        lengths = np.ones(400, np.int64) if found.lengths is None else found.lengths
        assert lengths.tolist() == expected.lengths[:, 0].tolist(), feature.name
        assert (found.weights is not None) == (feature.name == "liked")
        if found.weights is not None and expected.weights is not None:
            assert found.weights.tolist() == expected.weights.tolist()


@pytest.mark.parametrize(("weights", "taken"), [(["x", 2], None), ([None, 2], None), ([7, 2], [2.0])])
def test_weight_beside_a_dropped_id_is_a_number(tmp_path: Path, weights: list[Any], taken: list[float] | None) -> None:
    """Training refuses the row, too: see `test_a_row_with_wrong_weights_is_a_bad_one`."""
    named = ColumnsSpec(("click",), (), (), (), separator="|")
    data = DataSpec("CSV", f"file://{tmp_path}/rows.csv", 1, None, 64, 7, 0, columns=named)
    features = (FeatureSpec("liked", "liked", "item", "Sum", weights="stars", max_length=1),)
    transform = transform_of(serving_job(data, (TableSpec("item", 50),), features, 0))
    given = {"liked": [[1, None, 2]], "stars": [[weights[0], "beside no id", weights[1]]]}
    if taken is None:
        with pytest.raises(EncodeError, match=r"column stars, sample 0: (a weight is missing|'x' is not)"):
            ids_of(transform, transform.features[0], given)
        return
    found = ids_of(transform, transform.features[0], given)
    assert found.lengths is not None
    assert found.weights is not None
    assert (found.lengths.tolist(), found.weights.tolist()) == ([1], taken)


def test_texts_are_encoded_as_training_encodes_them(tmp_path: Path) -> None:
    lines = ["click,views,price,user,tags", "1,3,.5,42,a|b", "0,,1e3,,", "1,-2,-7.25,é,b||c", "0,x,1,z,d"]
    (tmp_path / "rows.csv").write_text("\n".join(lines[:-1]) + "\n", "utf-8")
    named = ColumnsSpec(("click",), ("views",), ("price",), ("user", "tags"), separator="|")
    data = DataSpec("CSV", f"file://{tmp_path}/rows.csv", 1, None, 64, 7, 0, columns=named)
    tables = TableSpec("user", 1000), TableSpec("tags", 100, pooling="Sum", ids="Murmur3")
    trained = serving_job(data, tables, (), 2)
    batch = open_dataset(data, trained.model, Uris(STORE)).take(np.arange(3))
    assert isinstance(batch.ids, Bags)
    cells = [line.split(",") for line in lines[1:]]
    given = dict(zip(lines[0].split(","), map(list, zip(*cells[:3], strict=True)), strict=True))
    transform = transform_of(trained)
    assert dense_of(transform, given).tobytes() == batch.dense.tobytes()
    for place, feature in enumerate(transform.features):
        expected, found = batch.ids.of(np.array([place])), ids_of(transform, feature, given)
        assert found.rows.tolist() == expected.ids.tolist()
    wrong = given | {"views": ["3", "x", "1"]}
    with pytest.raises(EncodeError, match="column views, sample 1: 'x' is not a finite number"):
        dense_of(transform, wrong)


@pytest.mark.parametrize("ids", ["CPR64", "RowNumber"])
def test_whole_numbers_are_encoded_as_training_encodes_them(tmp_path: Path, ids: Ids) -> None:
    cells = ["12", "12.0", " 12", "+12", "012", "0", "-0", "", " "]
    (tmp_path / "rows.csv").write_text("click,user\n" + "".join(f"1,{cell}\n" for cell in cells))
    named = ColumnsSpec(("click",), (), (), ("user",), integers=("user",))
    data = DataSpec("CSV", f"file://{tmp_path}/rows.csv", 1, None, 64, 7, 0, columns=named)
    trained = serving_job(data, (TableSpec("user", 1000, ids=ids, out_of_range="DefaultRow"),), (), 0)
    batch = open_dataset(data, trained.model, Uris(STORE)).take(np.arange(len(cells)))
    document = transform_of(trained).to_json()
    assert json.loads(document)["version"] == 2, "readers of version 1 have no integers"
    transform = Transform.of_json(document)
    (feature,) = transform.features
    assert ids_of(transform, feature, {"user": cells}).rows.tolist() == single_ids(batch)[:, 0].tolist()
    given = [12, 12.0, np.float32(12), "12.0", 12, 0, -0.0, None, float("nan")]
    assert ids_of(transform, feature, {"user": given}).rows.tolist() == single_ids(batch)[:, 0].tolist()
    for wrong in (12.5, "u1", float("inf"), 2.0**53 + 2, "1e3"):
        with pytest.raises(EncodeError, match=r"column user: .* is not an id; give a whole number or None"):
            ids_of(transform, feature, {"user": [wrong]})


@settings(deadline=None)
@example(texts=[bytes(range(length)) for length in (*range(70), 255, 0)], seed=7)
@given(texts=st.lists(st.binary(max_size=80), max_size=20), seed=st.integers(0, 2**32 - 1))
def test_hashes_are_those_of_other_libraries(texts: list[bytes], seed: int) -> None:
    cells = Cells.of(texts)
    assert hashes(cells, "XXH64", seed).tolist() == [xxhash.xxh64_intdigest(text, seed) for text in texts]
    assert hashes(cells, "Murmur3", seed).tolist() == [mmh3.hash64(text, seed, signed=False)[0] for text in texts]


def one(ids: str, **options: object) -> Transform:
    table = {"name": "t", "file": "t", "rows": 1000, "dim": 4, "ids": ids, "seed": 0, "outOfRange": "Fail"} | options
    return Transform(1, (Numeric("x", "Count"),), (Table(**table),), (Feature("t", "id", "t"),), ("y",))  # type: ignore[arg-type]


def test_the_page_has_the_rows_that_are_computed() -> None:
    page = (Path(__file__).parents[3] / "docs" / "serving.md").read_text("utf-8")
    found = re.findall(r"^\| `(.+)` \| (\d+) \| (\d+) \| (\d+) \| ([\d-]+) \|$", page, re.MULTILINE)
    assert len(found) == 6
    for text, *stated in found:
        value = json.loads(text)
        for ids, row in zip(("CPR64", "XXH64", "Murmur3", "RowNumber"), stated, strict=True):
            transform = one(ids)
            given = {"x": [0], "id": [value]}
            if row == "-":
                with pytest.raises(EncodeError, match="has no row"):
                    ids_of(transform, transform.features[0], given)
            else:
                assert ids_of(transform, transform.features[0], given).rows.tolist() == [int(row)]


def test_unusable_value_is_named() -> None:
    transform = one("RowNumber")
    (feature,) = transform.features
    with pytest.raises(EncodeError, match=r"column id, sample 1: 1000 has no row; give an integer from 0 to 999"):
        ids_of(transform, feature, {"x": [0, 0], "id": ["7", 1000]})
    with pytest.raises(EncodeError, match=r"column id: 1\.5 is not an id"):
        ids_of(transform, feature, {"x": [0], "id": [1.5]})
    with pytest.raises(EncodeError, match=r"column id: \[1\] is not an id"):
        ids_of(transform, feature, {"x": [0], "id": [[1]]})
    with pytest.raises(EncodeError, match="the model needs the columns id"):
        dense_of(transform, {"x": [0]})
    with pytest.raises(EncodeError, match="different numbers of samples"):
        dense_of(transform, {"x": [0], "id": []})
    with pytest.raises(EncodeError, match="column x, sample 0: nan is not a finite number"):
        dense_of(transform, {"x": [float("nan")], "id": [1]})
    with pytest.raises(ValueError, match=r"transform\.json is of version 4"):
        Transform.of_json('{"version": 4}')
