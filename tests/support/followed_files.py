"""A followed job's data in files without content: the leader's looks, and a trainer that reads the pins."""

from __future__ import annotations

from typing import cast

from cpr_contract.pinned_data import DataPin
from cpr_contract.spec import DataSpec, FollowSpec
from cpr_trainer.data.arriving_files import ArrivingFiles, IndexFiles
from cpr_trainer.store import Uris
from cpr_trainer.trainer.followed_data import DataLooks, FollowedData
from support.file_folder import Folder
from support.memory_store import MemoryStore

BATCH = 8
DATA = DataSpec("CSV", "/clicks/", 1, None, BATCH, 3, 0, shuffle_rows=30, follow=FollowSpec(1.0))

#: A row: its file, and its place there.
Row = tuple[str, int]


class Reader:
    """A trainer: the pins that it has read, and the rows that it trains."""

    def __init__(self, store: MemoryStore, data: DataSpec = DATA) -> None:
        self.followed = FollowedData(data, "uid", store)
        self.rows: list[Row] = []

    def read(self, up_to: int | None = None) -> None:
        for index in self.followed.read(up_to):
            self.rows += [(index.file.uri, row) for row in range(sum(block.rows for block in index.blocks))]

    def step(self, step: int) -> list[Row]:
        order = self.followed.order
        return [self.rows[row] for row in order.indices_of(order.slice_of(step)).tolist()]


def looks_of(store: MemoryStore, folder: Folder, data: DataSpec = DATA) -> DataLooks:
    return DataLooks(data, "uid", store, arrivals_of(folder))


def arrivals_of(folder: Folder, index: IndexFiles | None = None) -> ArrivingFiles:
    return ArrivingFiles("/clicks/", cast(Uris, folder), index or folder.index)


def look(looks: DataLooks, times: int = 2, *, waits: bool = True) -> list[DataPin]:
    found = (looks.look(waits=waits, now_s=0.0) for _ in range(times))
    return [pin for pin in found if pin is not None]
