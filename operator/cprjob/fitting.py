"""`fit`, which trains the model of a CPRJob in this process. Its imports are slow, so they are in the function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpr_trainer.model.entrypoint import Factory
    from cpr_trainer.notebook import Fitted


@contextmanager
def extra(name: str, needed_by: str) -> Iterator[None]:
    """Name the extra in the error of an import that fails for a missing package."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{needed_by} needs {error.name}: install cprjob with its extra {name}", name=error.name
        ) from error


def fit(job: str | Path | Mapping[str, Any], *, network: Factory | None = None, progress: bool = False) -> Fitted:
    """Train a job in this process and in memory, as its trainer would, and return the model.

    job: the path of a CPRJob's manifest, or its `spec`, in which fields that only a cluster needs are optional.
    network: called as `network(spec, seed)`, returns the dense network; it replaces `model.entrypoint`.
    progress: write a bar to the standard error.

    Nothing is saved. The model equals that of a job of one trainer with the same seed. Raises InvalidSpecError, which
    names every wrong field; OSError and yaml.YAMLError for a file that cannot be read; ModelError, DataError,
    StoreError and DivergedError as a trainer does; ImportError if an extra of cprjob is not installed.
    """
    with extra("operator", "fit"):
        from cprjob.reading import read_job
    with extra("trainer", "fit"):
        from cpr_trainer.notebook import train
    return train(read_job(job, own_network=network is not None), network, progress=progress)
