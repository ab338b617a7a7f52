"""Writes visits to a shop as Parquet, to try the example with: python shop.py FOLDER [ROWS]."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

folder, rows = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 200_000
random = np.random.default_rng(1)
tastes, appeals = random.normal(size=2000), random.normal(size=500)
users, items = random.integers(0, 2000, rows), random.integers(0, 500, rows)
price = random.normal(size=rows)
wish = tastes[users] + appeals[items]

chances = 1 / (1 + np.exp(0.5 - wish)), 1 / (1 + np.exp(1 + 1.5 * price - wish))
clicked = random.random(rows) < chances[0]
bought = clicked & (random.random(rows) < chances[1])  # A purchase follows a click.
table = pa.table(
    {
        "click": clicked.astype(np.int8),
        "buy": bought.astype(np.int8),
        "price": price.astype(np.float32),
        "user": users,
        "item": items,
    }
)
folder.mkdir(parents=True, exist_ok=True)
pq.write_table(table, folder / "visits.parquet", row_group_size=65536)
