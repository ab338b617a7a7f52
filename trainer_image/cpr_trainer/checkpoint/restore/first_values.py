"""First values of rows that an anchor does not hold, as the job had them that wrote it: nobody ever pushed to those."""

from __future__ import annotations

import numpy as np

from cpr_trainer.arrays import Ints
from cpr_trainer.checkpoint.restore.by_name import Source, TableMapping
from cpr_trainer.tables.home import Home
from cpr_trainer.tables.seeding import Seeding


def take_first_values(home: Home, origin: TableMapping | int | None) -> None:
    """Give rows that are in no save what they had in the anchor, as changes that every save holds.

    origin: where the tables come from, or, if they are the same, the seed there; None if nothing else is known than the
    job's own. Rows whose first values here are those there stay as they are, and so do those that start fresh.
    """
    own = home.seeding
    match origin:
        case None:
            return
        case int():
            there = Seeding(own.rows, own.dims, origin)
            sources: tuple[Source | None, ...] = tuple(Source(table, rows) for table, rows in enumerate(own.rows))
        case TableMapping():
            tables = origin.tables
            there = Seeding([table.rows for table in tables], [table.dim for table in tables], origin.seed)
            sources = origin.sources
    others = [
        source is not None and (there.seed, source.table, source.rows) != (own.seed, table, own.rows[table])
        for table, source in enumerate(sources)
    ]
    if any(others):
        _Taking(home, there, np.array(others), sources).run()


class _Taking:
    """Takes the first values of some tables, those that `others` (bool [T]) names."""

    def __init__(self, home: Home, there: Seeding, others: np.ndarray, sources: tuple[Source | None, ...]) -> None:
        self._home = home
        self._there = there
        self._others = others
        self._tables: Ints = np.array([0 if source is None else source.table for source in sources], np.int64)
        self._rows: Ints = np.array([1 if source is None else source.rows for source in sources], np.int64)
        self._repeated = np.array([source is not None and source.repeated for source in sources])

    def run(self) -> None:
        """Do it for all rows that have not changed."""
        arena = self._home.arena
        for chunk in self._home.placement.rows_of(self._home.index):
            slots = np.arange(chunk.first_slot, chunk.first_slot + len(chunk.rows))
            known = self._repeated[chunk.tables] | (chunk.rows < self._rows[chunk.tables])
            wanted = (arena.epochs.of[slots] == 0) & self._others[chunk.tables] & known
            tables, rows, slots = chunk.tables[wanted], chunk.rows[wanted], slots[wanted]
            for segment, inside in arena.parted(slots):
                segment.rows[inside] = self._there.values(self._tables[tables], rows % self._rows[tables])
                segment.state[inside] = 0.0
            arena.epochs.of[slots] = 1
