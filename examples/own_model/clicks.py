"""Writes clicks with bags of tags as Parquet, to try the example with: python clicks.py FOLDER [ROWS]."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

folder, rows = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 200_000
random = np.random.default_rng(1)
user_effects, tag_effects = random.normal(size=2000), 2 * random.normal(size=300)
users, price = random.integers(0, 2000, rows), random.normal(size=rows)
lengths = random.integers(0, 9, rows)
bounds = np.concatenate(([0], np.cumsum(lengths)))
tags = random.integers(0, 300, bounds[-1])
sums = np.concatenate(([0.0], np.cumsum(tag_effects[tags])))
means = (sums[bounds[1:]] - sums[bounds[:-1]]) / np.maximum(lengths, 1)
clicked = random.random(rows) < 1 / (1 + np.exp(1 - user_effects[users] - 2 * means - 0.5 * price))
table = pa.table(
    {
        "click": clicked.astype(np.int8),
        "price": price.astype(np.float32),
        "user": users,
        "tags": pa.ListArray.from_arrays(bounds.astype(np.int32), pa.array(tags)),
    }
)
folder.mkdir(parents=True, exist_ok=True)
pq.write_table(table, folder / "clicks.parquet", row_group_size=65536)
