"""The log of a table whose later versions are trained, too: what Delta Lake and Iceberg have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from cpr_contract.pinned_data import TableColumn, TableVersion
from cpr_trainer.data.table_columns import TableSnapshot
from cpr_trainer.errors import DataError

_NEW_JOB = "start a new job, from the last model of this one by snapshots.restoreFrom"


@dataclass(frozen=True, slots=True)
class Appended:
    """The files that versions of a table added after the pinned one, in the order of their commits.

    `snapshot` has these files, and the last of these versions. refused: the error of the version after it, which
    cannot be followed. more: the log has versions that may not be read yet.
    """

    snapshot: TableSnapshot
    refused: DataError | None = None
    more: bool = False


class TableLog(Protocol):
    """The log of one table. For one thread."""

    def read(self, pinned: TableVersion | None) -> Appended | None:
        """Return the files that the versions after the pinned one added. Each version is read once.

        Without a pinned version they are all files of the version with which the job begins; None if the table has no
        version yet. Raises DataError if versions after the pinned one are lost, or the table is another one, and
        StoreError.
        """


def rows_changed(version: str) -> DataError:
    """Return the error for a version that deletes or updates rows."""
    return DataError(
        f"{version} deletes or updates rows, and a job with data.follow trains appended rows only.",
        f"Only append to the table. To train it as it is now, {_NEW_JOB}.",
    )


def history_lost(message: str, retention: str) -> DataError:
    """Return the error for versions that were lost before they were pinned. retention: the property that sets it."""
    return DataError(
        message,
        f"Set {retention} above the time for which a job may be suspended or fail. The rows of these versions are lost "
        f"for this job: {_NEW_JOB}.",
    )


def table_replaced(message: str) -> DataError:
    """Return the error for a table that does not continue the pinned version."""
    return DataError(f"{message} It was restored, rolled back or created again.", f"Restore it, or {_NEW_JOB}.")


def check_columns_continue(table: str, before: TableVersion, after: TableVersion, used: Iterable[str]) -> None:
    """Raise DataError if a later version does not find a column in use where an earlier one did.

    A column that was dropped and added again has the old name, and none of the old values.
    """
    sources, later = _sources(before.columns), _sources(after.columns)
    for name in used:
        if name in sources and later.get(name) != sources[name]:
            change = "dropped and added again" if name in later else "dropped or renamed"
            raise DataError(
                f"Column {name} of {table} was {change} after version {before.version}, in a version up to "
                f"{after.version}.",
                f"Restore the column, or correct data.columns and {_NEW_JOB}.",
            )


def _sources(columns: Iterable[TableColumn]) -> dict[str, int | tuple[str, ...]]:
    return {each.name: each.names if each.field_id is None else each.field_id for each in columns}
