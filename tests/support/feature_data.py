"""Features over shared tables: visits with a history of pages, as Parquet and as text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from cpr_contract.model import FeatureSpec, ModelSpec, TableSpec
from cpr_contract.spec import ColumnsSpec, DataSpec
from cpr_trainer.embedding.bags import Bags, Column, FeatureLayout
from support.table_data import model_of, write

#: `page` is shared: by the page itself, by the pages seen before, in turn, and by a weighted sum of liked ones.
TABLES = (TableSpec("user", 50), TableSpec("page", 40), TableSpec("tag", 30, dim=2))
FEATURES = (
    FeatureSpec("visitor", "user", "user"),
    FeatureSpec("page", "page", "page"),
    FeatureSpec("history", "seen", "page", "None", max_length=5, weights="seconds"),
    FeatureSpec("liked", "liked", "page", "Sum", weights="stars"),
    FeatureSpec("tags", "tags", "tag", "Mean"),
)
COLUMNS = ColumnsSpec(("click",), (), ("price",), ())


def model_of_features(*, one_dim: bool = False) -> ModelSpec:
    """The model of the tables and features above; on demand with tables of one dim."""
    tables = tuple(replace(table, dim=None) for table in TABLES) if one_dim else TABLES
    return replace(model_of(tables), features=FEATURES, entrypoint="support.feature_network:Network", numeric=1)


def columns_of_bags(samples: int, seed: int) -> list[Column]:
    """Random ids, of each feature a column."""
    rng = np.random.default_rng(seed)
    rows = {table.name: table.rows for table in TABLES}
    columns = []
    for feature in FEATURES:
        lengths = rng.integers(0, 5, samples) if feature.pooling else np.ones(samples, np.int64)
        ids = rng.integers(0, rows[feature.table], lengths.sum()).astype(np.int32)
        weights = rng.normal(size=len(ids)).astype(np.float32) if feature.weights else None
        columns.append(Column(ids, lengths.astype(np.int64), weights))
    return columns


def bags_of(columns: list[Column], model: ModelSpec) -> Bags:
    """The bags of such columns."""
    means = np.array([feature.pooling == "Mean" for feature in model.features])
    return Bags.of_columns(columns, means, FeatureLayout.of(model))


def visits(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Rows with clicks that follow from the page and the history."""
    rng = np.random.default_rng(seed)
    effects = rng.normal(size=40)
    rows: list[dict[str, object]] = []
    for _ in range(count):
        seen, liked = rng.integers(0, 40, rng.integers(0, 8)), rng.integers(0, 40, rng.integers(0, 3))
        page = int(rng.integers(40))
        logit = effects[page] + (2 * effects[seen].mean() if len(seen) else 0)
        rows.append(
            {
                "click": int(rng.random() < 1 / (1 + np.exp(-logit))),
                "price": round(float(rng.normal()), 4),
                "user": f"u{rng.integers(50)}",
                "page": f"p{page}",
                "seen": [f"p{each}" for each in seen],
                "seconds": [round(float(each), 3) for each in rng.random(len(seen))],
                "liked": [f"p{each}" for each in liked],
                "stars": [float(each) for each in rng.integers(1, 6, len(liked))],
                "tags": [f"t{each}" for each in rng.integers(0, 20, rng.integers(0, 4))],
            }
        )
    return rows


_KINDS = {
    "seen": pa.list_(pa.string()),
    "liked": pa.list_(pa.string()),
    "tags": pa.list_(pa.string()),
    "seconds": pa.list_(pa.float64()),
    "stars": pa.list_(pa.float32()),
}


def write_visits(rows: list[dict[str, object]], folder: Path, ending: str) -> DataSpec:
    """Write the rows as one file, ending in parquet or tsv; return what names it."""
    table = pa.table({name: pa.array([row[name] for row in rows], _KINDS.get(name)) for name in rows[0]})
    return write(table, folder, ending, columns=COLUMNS)
