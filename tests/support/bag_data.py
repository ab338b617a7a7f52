"""Clicks with bags of tags, as Parquet and as text; whether one is clicked follows from its tags and its page."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from cpr_contract.model import TableSpec
from cpr_contract.spec import ColumnsSpec, DataSpec
from support.table_data import write

COLUMNS = ColumnsSpec(("click",), (), ("price",), ("tags", "page", "words"))
#: `tags` gives a mean, `words` a sum, and each click is on one page.
TABLES = (TableSpec("tags", 300, "Mean"), TableSpec("page", 40), TableSpec("words", 200, "Sum"))


_SCHEMA = pa.schema(
    {
        "click": pa.int64(),
        "price": pa.float64(),
        "tags": pa.list_(pa.string()),
        "page": pa.string(),
        "words": pa.list_(pa.int64()),
    }
)


@dataclass(frozen=True, slots=True)
class BagClick:
    """One row; None is an absent cell, or an absent id of a bag."""

    click: int = 1
    price: float = 0.5
    tags: tuple[str | None, ...] | None = ("a", "b")
    page: str | None = "p"
    words: tuple[int | None, ...] | None = (1, 2, 2)


def bag_clicks(count: int, seed: int = 0) -> list[BagClick]:
    """Rows with 0 to 6 tags and words."""
    random = np.random.default_rng(seed)
    tag_effects, page_effects = random.normal(size=200), random.normal(size=30)
    rows = []
    for _ in range(count):
        tags, page = random.integers(0, 200, random.integers(0, 7)), int(random.integers(30))
        logit = 3 * (tag_effects[tags].mean() if len(tags) else 0) + page_effects[page]
        click = int(random.random() < 1 / (1 + np.exp(-logit)))
        words = tuple(random.integers(0, 100, random.integers(0, 7)).tolist())
        rows.append(
            BagClick(click, round(float(random.normal()), 4), tuple(f"t{tag}" for tag in tags), f"p{page}", words)
        )
    return rows


def write_bags(rows: list[BagClick], folder: Path, ending: str, files: int = 1) -> DataSpec:
    """Write the rows as `files` files, ending in parquet, csv or tsv; return their spec."""
    return write(as_table(rows), folder, ending, files=files, columns=COLUMNS)


def as_table(rows: list[BagClick]) -> pa.Table:
    return pa.Table.from_pylist([asdict(row) for row in rows], _SCHEMA)
