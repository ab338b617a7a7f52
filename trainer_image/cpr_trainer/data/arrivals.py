"""Decisions about data that arrives: which files of a look are whole, and which pin is due. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cpr_trainer.store import Version


@dataclass(frozen=True, slots=True)
class Arrived:
    """The unpinned files of a look. `settled` ones are whole, sorted by name; `late` are those among them.

    A late file has a name before that of a pinned one. `more` is True if other files are on their way.
    """

    settled: tuple[str, ...]
    late: tuple[str, ...]
    more: bool


def compare_looks(before: Mapping[str, Version], now: Mapping[str, Version], newest: str) -> Arrived:
    """Compare two looks at the files that are not pinned; a file with the same version in both is settled.

    newest: the last name of all pinned files, empty if there is none.
    """
    settled = tuple(sorted(uri for uri, version in now.items() if before.get(uri) == version))
    return Arrived(settled, tuple(uri for uri in settled if uri < newest), more=len(settled) < len(now))


def due_voids(  # noqa: PLR0913 -- what is known, and what is not
    known: int, new_rows: int, batch_size: int, *, waits: bool = False, more: bool = False, ends: bool = False
) -> int | None:
    """Return the voids of the pin that is due now, None if none is.

    known: sample numbers in all pins. new_rows: rows of the settled files. waits: all known batches are trained. more:
    further files are on their way. ends: the pin is the last one.

    A whole batch of rows is pinned at once. Fewer rows wait for others while there is something to train, or files
    are on their way.
    """
    waiting = known % batch_size + new_rows
    voids = -waiting % batch_size
    if ends:
        return voids
    if new_rows and waiting >= batch_size:
        return 0
    return voids if waiting and waits and not more else None
