"""Writes visits to pages, with the pages seen before: python visits.py FOLDER [ROWS] [FURTHER COLUMNS]."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ITEMS, USERS = 2000, 1000

folder = Path(sys.argv[1])
rows = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
further = int(sys.argv[3]) if len(sys.argv) > 3 else 0
random = np.random.default_rng(1)
# A user likes the items that point where the user does, and has mostly seen such items.
tastes, kinds = random.normal(size=(USERS, 4)), random.normal(size=(ITEMS, 4))
users, items = random.integers(0, USERS, rows), random.integers(0, ITEMS, rows)
lengths = random.integers(0, 12, rows)
bounds = np.concatenate(([0], np.cumsum(lengths)))
whose = np.repeat(users, lengths)
two = random.integers(0, ITEMS, (2, bounds[-1]))
liked = [(tastes[whose] * kinds[each]).sum(axis=1) for each in two]
seen = np.where(liked[0] > liked[1], *two)
likes = (tastes[users] * kinds[items]).sum(axis=1)
clicked = random.random(rows) < 1 / (1 + np.exp(1 - likes))
columns = {
    "click": clicked.astype(np.int8),
    "price": random.normal(size=rows).astype(np.float32),
    "user": users,
    "item": items,
    "seen": pa.ListArray.from_arrays(bounds.astype(np.int32), pa.array(seen)),
}
# Each further column has a little of that, in 100 steps.
guesses = (likes + random.normal(scale=20, size=rows) for _ in range(further))
columns |= {f"c{number:03d}": np.clip(50 + 1.5 * guess, 0, 99).astype(int) for number, guess in enumerate(guesses)}
folder.mkdir(parents=True, exist_ok=True)
pq.write_table(pa.table(columns), folder / "visits.parquet", row_group_size=16384)
