"""Errors for packages that only an extra of cprjob installs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str, needed_by: str) -> Iterator[None]:
    """Name the extra in the error of an import that fails for a missing package."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{needed_by} needs {error.name}: install cprjob with its extra {name}", name=error.name
        ) from error
