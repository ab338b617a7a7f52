"""Clicks with bags of tags, as Parquet and as text; whether one is clicked follows from its tags and its page."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cpr_contract.model import TableSpec
from cpr_contract.spec import ColumnsSpec, DataSpec
from support.table_data import spec

COLUMNS = ColumnsSpec(("click",), (), ("price",), ("tags", "page", "words"))
#: `tags` gives a mean, `words` a sum, and each click is on one page.
TABLES = (TableSpec("tags", 300, "Mean"), TableSpec("page", 40), TableSpec("words", 200, "Sum"))


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
    """Write the rows as so many files, ending in parquet, csv or tsv; return what names them."""
    folder.mkdir(exist_ok=True)
    bounds = [number * len(rows) // files for number in range(files + 1)]
    for number in range(files):
        part, path = rows[bounds[number] : bounds[number + 1]], folder / f"part-{number}.{ending}"
        if ending == "parquet":
            pq.write_table(as_table(part), path, row_group_size=max(1, len(part) // 3))
        else:
            path.write_text(_as_text(part, "," if ending == "csv" else "\t"))
    name = {"parquet": "Parquet", "csv": "CSV", "tsv": "TSV"}[ending]
    separator = None if ending == "parquet" else "|"
    return replace(spec(name, f"{folder}/"), columns=replace(COLUMNS, separator=separator))


def as_table(rows: list[BagClick]) -> pa.Table:
    kinds = {"tags": pa.list_(pa.string()), "words": pa.list_(pa.int64()), "page": pa.string()}
    names = [*BagClick.__dataclass_fields__]
    return pa.table({name: pa.array([getattr(row, name) for row in rows], kinds.get(name)) for name in names})


def _as_text(rows: list[BagClick], delimiter: str) -> str:
    names = [*BagClick.__dataclass_fields__]
    lines = [names] + [[_cell(getattr(row, name)) for name in names] for row in rows]
    return "".join(delimiter.join(line) + "\n" for line in lines)


def _cell(value: object) -> str:
    if isinstance(value, tuple):
        return "|".join(map(_cell, value))
    return "" if value is None else str(value)
