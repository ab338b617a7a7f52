"""The files that are being read: few at a time, however many there are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

_MOST = 8


class _Closable(Protocol):
    def close(self) -> object: ...


Opened = TypeVar("Opened", bound=_Closable)


class OpenFiles(Generic[Opened]):
    """Those used last stay open, to be read on; all are closed with this object. For one thread."""

    def __init__(self, open_file: Callable[[str], Opened]) -> None:
        self._open_file = open_file
        self._open: OrderedDict[str, Opened] = OrderedDict()

    def get(self, uri: str) -> Opened:
        """Return the file of that name; raises what opening it raises."""
        file = self._open.pop(uri, None) or self._open_file(uri)
        self._open[uri] = file
        if len(self._open) > _MOST:
            self._open.popitem(last=False)[1].close()
        return file

    def __del__(self) -> None:
        """Nobody else knows when a dataset is no longer read."""
        for file in self._open.values():
            file.close()
