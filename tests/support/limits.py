"""A job at the limits: as many tables, features and numbers as the resource allows."""

from __future__ import annotations

import random
import string

from cpr_contract.model import MAX_FEATURES, MAX_NUMERIC, MAX_TABLES
from support.documents import Document, edited


def largest(extra: int = 0, shards: int = 2) -> Document:
    """A job with all of them, under realistic names, each followed by a number of random characters."""
    rng = random.Random(1)

    def name(kind: str, number: int) -> str:
        end = "".join(rng.choices(string.ascii_lowercase + string.digits, k=extra))
        return f"{kind}_{number:04d}_{end}x"

    tables = [name("embedding_table", number) for number in range(MAX_TABLES)]
    features = [
        {
            "name": name("feature", number),
            "column": name("column_of_ids", number),
            "table": tables[number % MAX_TABLES],
            "pooling": "Sum",
            "maxLength": 1 + number,
            "weights": name("column_of_weights", number),
        }
        for number in range(MAX_FEATURES)
    ]
    numbers = [name("column_of_numbers", number) for number in range(MAX_NUMERIC)]
    return edited(
        {
            "spec.shards.replicas": shards,
            "spec.model.tables": [{"name": each, "rows": 1000 + place} for place, each in enumerate(tables)],
            "spec.model.features": features,
            "spec.model.numeric": MAX_NUMERIC,
            "spec.data": {
                "format": "Parquet",
                "uri": "s3://clicks/day/",
                "columns": {"labels": ["click"], "numbers": numbers},
                "epochs": 1,
            },
        }
    )
