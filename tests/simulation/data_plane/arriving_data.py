"""Data that arrives while a simulated job trains: files come at random, and the real looks and pins name them.

The rows of a job are known by their number alone. All trainers must take the same rows in a step under all faults, and
each row once in the end.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from cpr_contract.spec import FollowSpec, JobSpec
from cpr_trainer.data.arriving_files import ArrivingFiles
from cpr_trainer.data.files import Index
from cpr_trainer.data.order import Order
from cpr_trainer.store import Store, Uris
from cpr_trainer.trainer.followed_data import DataLooks, FollowedData
from support.file_folder import Folder

#: The part of looks at which no file has come: a batch that lacks rows is then filled.
_PAUSES = 0.6
_UNTIL_S = 1.0


class ArrivingData:
    """The files of a job, which end with its step `last_step`; and the rows that trainers have taken.

    They end by time, or once the job is idle: then a file is on its way whenever the trainers wait before the end.
    """

    def __init__(self, job: JobSpec, last_step: int, rng: random.Random) -> None:
        self._finishes = rng.random() < 0.5
        follow = FollowSpec(0.1, idle="Finish") if self._finishes else FollowSpec(0.1, until_s=_UNTIL_S)
        self._data = replace(job.data, format="CSV", uri="log/", samples=None, epochs=1, shuffle_rows=40, follow=follow)
        self._job_uid = job.job_uid
        self._end = last_step * job.data.batch_size
        self._rng = rng
        self._folder = Folder()
        self._growing: tuple[str, int] | None = None
        self._taken: dict[tuple[int, int], tuple[tuple[str, int], ...]] = {}

    def reader(self, store: Store) -> FollowedData:
        """Return what a trainer that starts knows of the data."""
        return FollowedData(self._data, self._job_uid, store)

    def looks(self, store: Store, oldest_samples: Callable[[], int]) -> DataLooks:
        """Return the looks of a trainer that starts to lead."""
        arrivals = ArrivingFiles("log/", cast(Uris, self._folder), self._folder.index)
        return DataLooks(self._data, self._job_uid, store, arrivals, oldest_samples)

    def arrive(self, pinned: FollowedData, *, waits: bool) -> None:
        """Let a file grow, or come, once the others are pinned; the last one ends with the last step."""
        if self._growing is not None:
            self._folder.write(*self._growing)
            self._growing = None
            return
        batch, left = self._data.batch_size, self._end - pinned.order.known_samples
        if not left or not self._folder.files.keys() <= pinned.names:
            return
        if not (self._finishes and waits) and self._rng.random() < _PAUSES:
            return
        rows = self._rng.randint(1, 8 * batch)
        rows = left if left - rows < batch else rows
        name = f"{self._rng.randrange(10**6):06d}"
        if self._rng.random() < 0.3:
            self._growing = name, rows
            rows = self._rng.randint(0, rows)
        self._folder.write(name, rows)

    def now_s(self, pinned: FollowedData) -> float:
        """Return the time of a look: the data ends once all files are pinned."""
        return _UNTIL_S if pinned.order.known_samples == self._end else 0.0

    def take(self, step: int, rank: int, trainers: int, order: Order, files: list[Index]) -> None:
        """Note that a trainer takes its rows of a step; they are those of the last time."""
        numbers = [(index.file.uri, row) for index in files for row in range(sum(each.rows for each in index.blocks))]
        rows = tuple(numbers[row] for row in order.indices_of(order.slice_of(step, rank, trainers)).tolist())
        before = self._taken.setdefault((step, rank), rows)
        assert before == rows, f"rank {rank} trains other rows in step {step} than before"

    def check_end(self) -> None:
        """Each row of all files was trained once."""
        taken = Counter(row for rows in self._taken.values() for row in rows)
        files = self._folder.files.items()
        assert taken == Counter((name, row) for name, (rows, _) in files for row in range(rows))
