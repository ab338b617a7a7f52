"""New versions of a followed job's table: the files that they added, indexed once."""

from __future__ import annotations

from collections.abc import Sequence

from cpr_trainer.data.arrivals import Arrived, Pinned
from cpr_trainer.data.files import Index
from cpr_trainer.data.reader import index_each
from cpr_trainer.data.table_columns import TableSnapshot
from cpr_trainer.data.table_log import TableLog, check_columns_continue
from cpr_trainer.data.tables import TableFormat


class ArrivingTable:
    """The table at `uri`, whose log is read by `log`, and its files by `form`; `used` are the columns in use.

    A version is whole, so it is pinned at the first look that finds it. For one thread.
    """

    def __init__(self, log: TableLog, form: TableFormat, uri: str, used: Sequence[str]) -> None:
        self._log = log
        self._form = form
        self._uri = uri
        self._used = used
        self._indexed: dict[str, Index] = {}

    def look(self, pinned: Pinned) -> Arrived:
        """Return the files that versions after the pinned one added.

        Raises DataError for a version that cannot be followed, once the versions before it are pinned, and StoreError.
        """
        found = self._log.read(pinned.table)
        if found is None:
            return Arrived((), more=True)
        if found.refused is not None and not found.snapshot.files:
            raise found.refused
        version = found.snapshot.version
        if pinned.table is not None:
            check_columns_continue(self._uri, pinned.table, version, self._used)
        return Arrived(self._index(found.snapshot), table=version, more=found.more)

    def _index(self, snapshot: TableSnapshot) -> tuple[Index, ...]:
        """Return the indices of the files of a snapshot; those that an earlier look indexed are not read again."""
        columns, before = snapshot.version.columns, self._indexed
        if any(index.file.table and index.file.table.columns != columns for index in before.values()):
            before = {}
        self._form.use(snapshot)
        new = index_each([uri for uri in snapshot.files if uri not in before], self._form)
        found = before | {index.file.uri: index for index in new}
        self._indexed = {uri: found[uri] for uri in snapshot.files}
        return tuple(self._indexed.values())
