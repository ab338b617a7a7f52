"""The files that are being read: few at a time, however many there are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar
from weakref import finalize

from cpr_trainer.data.blocks import SourceFile

_MOST = 8


class Closable(Protocol):
    """What can be closed."""

    def close(self) -> object:
        """Close it."""


Opened = TypeVar("Opened", bound=Closable)


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
        with closed_on_error(file):
            yield file
        self._open[wanted] = file
        if len(self._open) > _MOST:
            self._open.popitem(last=False)[1].close()


@contextmanager
def closed_on_error(file: Closable) -> Iterator[None]:
    """Close a file if what is done with it fails."""
    try:
        yield
    except BaseException:
        file.close()
        raise


def _close(files: Mapping[SourceFile, Closable]) -> None:
    for file in files.values():
        file.close()
