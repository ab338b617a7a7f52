"""New files of a followed job's data: whole ones, indexed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from cpr_trainer.data.arrivals import Arrived, Pinned, compare_looks
from cpr_trainer.data.files import Index
from cpr_trainer.errors import DataError
from cpr_trainer.store import Uris, Version

#: Indexes files. Raises DataError, and StoreError.
IndexFiles = Callable[[Sequence[str]], Sequence[Index]]


class ArrivingFiles:
    """The files that `uri` names. One that two looks find with the same version is whole. For one thread."""

    def __init__(self, uri: str, files: Uris, index: IndexFiles) -> None:
        self._uri = uri
        self._files = files
        self._index = index
        self._before: dict[str, Version] = {}
        self._indexed: dict[str, Index] = {}

    def look(self, pinned: Pinned) -> Arrived:
        """Return the whole files that are not pinned. Raises DataError for an unusable file, and StoreError."""
        listed = self._files.find(self._uri, may_be_empty=True)
        now = self._versions(uri for uri in listed if uri not in pinned.names)
        settled, late = compare_looks(self._before, now, max(pinned.names, default=""))
        self._before = now
        indices = self._index_settled(settled)
        # One that changed since will settle again.
        return Arrived(tuple(indices), late, listed, more=len(indices) < len(now))

    def _index_settled(self, uris: Sequence[str]) -> list[Index]:
        """Return the indices of settled files, each read once, without those that changed after the look.

        Raises DataError for a file that is damaged and did not change.
        """
        new = [uri for uri in uris if uri not in self._indexed]
        try:
            self._indexed |= {index.file.uri: index for index in (self._index(new) if new else ())}
        except DataError:
            if self._versions(uris) == {uri: self._before[uri] for uri in uris}:
                raise
            return []
        current = [uri for uri in uris if self._indexed[uri].file.version == self._before[uri]]
        self._indexed = {uri: self._indexed[uri] for uri in current}
        return list(self._indexed.values())

    def _versions(self, uris: Iterable[str]) -> dict[str, Version]:
        """Return the versions of the files that are still there."""
        found: dict[str, Version] = {}
        for uri in uris:
            with suppress(DataError):
                found[uri] = self._files.version(uri)
        return found
