"""CPRJob documents of the tests: the shortest one, edits of it, and parts that several tests need."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]
Edits = dict[str, Any]

#: As an edit's value: take the field away.
ABSENT = object()


@dataclass(frozen=True, slots=True)
class Case:
    """One rule: edits of the minimal manifest that keep it and that break it.

    `field` is the one that `validate` names; `message` the common part of the messages of pydantic and the API server
    (empty: only the field is compared).
    """

    field: str
    good: Edits
    bad: Edits
    message: str = ""


def bound(path: str, good: Any, bad: Any, *, under: Edits | None = None) -> Case:
    """Return the rule of one field: the values at its path that keep it and that break it, in edits of `under`."""
    field = re.sub(r"\.(\d+)", r"[\1]", path)
    return Case(field, {**(under or {}), path: good}, {**(under or {}), path: bad})


def minimal() -> Document:
    """The shortest manifest: everything else has a default."""
    return {
        "apiVersion": "cprjob.io/v1alpha1",
        "kind": "CPRJob",
        "metadata": {"name": "minimal"},
        "spec": {
            "image": "trainer",
            "accuracyBudget": {"portionOfLostSamples": 0.1},
            "model": {
                "embeddingDim": 4,
                "bottomMlp": [8, 4],
                "topMlp": [8, 1],
                "tables": [{"name": "a", "rows": 10}, {"name": "b", "rows": 5}],
            },
            "data": {"format": "Synthetic", "samples": 1000},
            "snapshots": {"store": {"endpoint": "http://store:9000", "bucket": "saves"}},
        },
    }


def edited(edits: Edits, base: Document | None = None) -> Document:
    """`base` (or the minimal manifest) with values set or taken away at dotted paths; numbers index lists."""
    document = copy.deepcopy(base if base is not None else minimal())
    for path, value in edits.items():
        *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
        node: Any = document
        for part in parents:
            node = node[part] if isinstance(part, int) else node.setdefault(part, {})
        if value is ABSENT:
            del node[last]
        else:
            node[last] = copy.deepcopy(value)
    return document


CRITEO: Edits = {"spec.data": {"format": "Criteo", "uri": "s3://clicks/day", "epochs": 1}}
COLUMNS = {"labels": ["click"], "counts": ["age"], "numbers": ["price"], "categories": ["user", "item"]}
PARQUET: Edits = {"spec.data": {"format": "Parquet", "uri": "s3://clicks/day=*/", "columns": COLUMNS, "epochs": 1}}
#: A store of its own for the data.
LAKE: Edits = {"spec.data.store": {"endpoint": "https://lake.example"}}
CSV: Edits = PARQUET | {"spec.data.format": "CSV"}
DELTA: Edits = PARQUET | {"spec.data.format": "Delta", "spec.data.uri": "s3://lake/clicks"}
#: Two features over one of the two tables; and data for them.
LISTED: Edits = {
    "spec.model.features": [
        {"name": "one", "column": "user", "table": "a"},
        {"name": "two", "column": "item", "table": "a"},
    ]
}
FEATURES: Edits = PARQUET | {"spec.data.columns.categories": []} | LISTED
CROSSED: Edits = {"spec.model.interaction": {"kind": "DCNv2", "layers": 3, "rank": 512}}
OWN_MODEL: Edits = {"spec.model.entrypoint": "my.package:Network"}
BAG: Edits = {"spec.model.tables.1.pooling": "Mean"}
NUMBERED: Edits = {"spec.model.tables.0.ids": "RowNumber"}
DYNAMIC: Edits = {"spec.model.tables.0.ids": "Dynamic"}
BUILT: Edits = {"spec.model.tables.0.ids": "Vocabulary", "spec.model.tables.0.vocabulary": {"build": {}}}
SEPARATED: Edits = {"spec.data.columns.separator": "|"}
AUC_DROP: Edits = {"spec.accuracyBudget": {"type": "AUCDrop", "aucDrop": {"limit": 0.0005, "sensitivity": 0.002}}}
