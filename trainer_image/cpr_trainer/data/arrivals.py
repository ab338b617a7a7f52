"""Decisions about data that arrives: which files of a look are whole, and which pin is due. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from cpr_contract.pinned_data import TableVersion
from cpr_trainer.data.files import Index
from cpr_trainer.store import Version


@dataclass(frozen=True, slots=True)
class Pinned:
    """The data of all pins so far.

    names: all pinned files that may be found again. needed: those with a sample after the oldest anchor that is kept,
    in their order. table: the version up to which the log of a table was read; None before the first pin.
    """

    names: Collection[str] = ()
    needed: Iterable[str] = ()
    table: TableVersion | None = None


@dataclass(frozen=True, slots=True)
class Arrived:
    """The new data of a look: files with all their rows, in the order in which they are trained.

    late: files with a name before that of a pinned one. listed: all files that the look found, pinned ones included.
    more: further rows are on their way. is_behind: they can be read at once. table: the version up to which the log of
    a table was read.
    """

    indices: tuple[Index, ...]
    late: tuple[str, ...] = ()
    listed: Collection[str] = ()
    more: bool = False
    is_behind: bool = False
    table: TableVersion | None = None


class Arrivals(Protocol):
    """A source of data that arrives. For one thread."""

    def look(self, pinned: Pinned) -> Arrived:
        """Look once. Raises DataError for data that cannot be used, and StoreError."""


def compare_looks(
    before: Mapping[str, Version], now: Mapping[str, Version], newest: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files that two looks found with one version, sorted by name, and those of them that are late.

    The looks are at files that are not pinned. newest: the last name of all pinned files, empty if there is none.
    """
    settled = tuple(sorted(uri for uri, version in now.items() if before.get(uri) == version))
    return settled, tuple(uri for uri in settled if uri < newest)


def due_voids(  # noqa: PLR0913 -- what is known, and what is not
    known: int,
    new_rows: int,
    batch_size: int,
    *,
    waits: bool = False,
    more: bool = False,
    moved: bool = False,
    ends: bool = False,
) -> int | None:
    """Return the voids of the pin that is due now, None if none is.

    known: sample numbers in all pins. new_rows: rows of the settled files. waits: all known batches are trained. more:
    further files are on their way. moved: the log of a table was read further than it is pinned. ends: the pin is the
    last one.

    A whole batch of rows is pinned at once. Fewer rows wait for others while there is something to train, or files
    are on their way. Versions without new rows are pinned as well, as the log need not have them for long.
    """
    waiting = known % batch_size + new_rows
    voids = -waiting % batch_size
    if ends:
        return voids
    if new_rows and waiting >= batch_size:
        return 0
    return voids if (waiting or moved) and waits and not more else None
