"""Opens the data that a job names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from cpr_contract.spec import DataSpec, TableSpec
from cpr_trainer.data.batch import Dataset
from cpr_trainer.data.criteo import read_criteo
from cpr_trainer.data.synthetic import SyntheticDataset
from cpr_trainer.errors import DataError

#: Opens a URI for reading from its beginning; need not be able to seek. Local files: `open_local`.
OpenUri = Callable[[str], BinaryIO]


def open_dataset(data: DataSpec, tables: Sequence[TableSpec], open_uri: OpenUri) -> Dataset:
    """Return the samples that `data` names, with one id for each of `tables`.

    Raises DataError for data that cannot be used, and whatever `open_uri` raises.
    """
    match data.format:
        case "Synthetic":
            if data.samples is None:
                raise DataError("Synthetic data has no length of its own.", "State data.samples.")
            return SyntheticDataset(data.samples, data.seed, tables)
        case "Criteo":
            if data.uri is None:
                raise DataError("Criteo data needs a place to be read from.", "State data.uri.")
            with open_uri(data.uri) as stream:
                return read_criteo(stream, data.uri, tables, data.max_bad_lines)


def open_local(uri: str) -> BinaryIO:
    """Open a local file, given as a path or as file:///path; DataError if that can't be done."""
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        raise DataError(f"{uri} is not a local file.", "Give a path, file:///path or s3://bucket/key.")
    path = Path(unquote(parts.path)) if parts.scheme else Path(uri)
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(
            f"{uri} cannot be opened: {error.strerror}.", "Check data.uri and what is mounted there."
        ) from error
