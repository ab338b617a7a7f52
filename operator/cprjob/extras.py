"""What a plain install of cprjob lacks, said by the name of the extra that has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str, needed_by: str) -> Iterator[None]:
    """Say which extra has what an import misses."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{needed_by} needs {error.name}: install cprjob with its extra {name}", name=error.name
        ) from error
