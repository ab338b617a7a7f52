"""The files that are being read: few at a time, however many there are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar
from weakref import finalize

from cpr_trainer.data.blocks import SourceFile

_MOST = 8


class _Closable(Protocol):
    def close(self) -> object: ...


Opened = TypeVar("Opened", bound=_Closable)


class OpenFiles(Generic[Opened]):
    """Those used last stay open, to be read on; all are closed with this object. For one thread."""

    def __init__(self, open_file: Callable[[SourceFile], Opened]) -> None:
        self._open_file = open_file
        self._open: OrderedDict[SourceFile, Opened] = OrderedDict()
        # Nobody else knows when a dataset is no longer read. `__del__` may run after the files' own, in a cycle.
        finalize(self, _close, self._open)

    @contextmanager
    def reading(self, wanted: SourceFile) -> Iterator[Opened]:
        """Give a file to read; raises what opening it raises.

        After an error it is closed: nobody knows how far it was read.
        """
        file = self._open.pop(wanted, None) or self._open_file(wanted)
        try:
            yield file
        except BaseException:
            file.close()
            raise
        self._open[wanted] = file
        if len(self._open) > _MOST:
            self._open.popitem(last=False)[1].close()


def _close(files: Mapping[SourceFile, _Closable]) -> None:
    for file in files.values():
        file.close()
