"""Training data from code of your own: rows that are made from their numbers, where yours come from anywhere.

`data.entrypoint: clicks:Clicks` names the class. A row must be the same in every process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

ROWS = 100_000
USERS, PAGES, TAGS = 4_000, 1_000, 300


class Clicks:
    """Users who look at pages with tags. `uri` is the job's data.uri, None if it states none."""

    def __init__(self, uri: str | None) -> None:
        self.uri = uri

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, rows: slice) -> dict[str, Any]:
        """Return the columns of some rows: arrays, or a list of lists where a row has any number of ids."""
        numbers = np.arange(rows.start, rows.stop)
        user, page = random(numbers, 1) % USERS, random(numbers, 2) % PAGES
        tags = [(random(np.arange(each % 4), each) % TAGS).tolist() for each in page]
        price = random(numbers, 3) % 1000 / 1000
        liked = (user % 7 < 3).astype(float) + (page % 5 < 2) - price
        click = (liked > random(numbers, 4) % 1000 / 500).astype(int)
        return {"click": click, "user": user, "page": page, "tags": tags, "price": price}


def random(numbers: NDArray[np.int64], seed: Any) -> NDArray[np.int64]:
    """Return numbers that look random, int64 [n], from the numbers of rows, int64 [n], and a seed."""
    mixed = (numbers.astype(np.uint64) + np.uint64(seed) * np.uint64(1 << 40)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0x94D049BB133111EB)
    return (mixed >> np.uint64(33)).astype(np.int64)
