"""Samples from sequences: Parquet with a row for each user, and a list of listens in each column, in the order of time.

The last listen of a user is the sample, and those before it are the history.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


class LastListens:
    """The last listen of each user with two listens at least; `played` is true for half of the track or more."""

    def __init__(self, uri: str | None) -> None:
        path = (uri or "").removeprefix("file://")
        users = pq.read_table(path, columns=["uid", "item_id", "played_ratio_pct"])
        self._users = users.filter(pc.greater(pc.list_value_length(users["item_id"]), 1))

    def __len__(self) -> int:
        return self._users.num_rows

    def __getitem__(self, rows: slice) -> pa.Table:
        users = self._users.slice(rows.start, rows.stop - rows.start).to_pydict()
        tracks, portions = users["item_id"], users["played_ratio_pct"]
        return pa.table(
            {
                "uid": users["uid"],
                "track": [each[-1] for each in tracks],
                "history": pa.array([each[:-1] for each in tracks], pa.list_(pa.int64())),
                "played": [each[-1] >= 50 for each in portions],
            }
        )
