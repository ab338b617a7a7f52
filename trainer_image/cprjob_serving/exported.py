"""A folder that `cprjob export` wrote: its tables, the inputs of its network, and the rows of a delta."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cprjob_serving.hashes import Floats, Ints
from cprjob_serving.keyed_rows import KeyedRows, write_changed
from cprjob_serving.tensor_files import release_pages, tensors
from cprjob_serving.transform import Columns, Transform, dense_of, ids_of
from cprjob_serving.vocabulary import Vocabulary

ABOUT, TRANSFORM, DELTA, CURRENT = "model.json", "transform.json", "delta.json", "current.json"
#: The rows that are replaced together. The first write to a page of a mapped file takes some microseconds.
_ROWS_AT_ONCE = 256


class DeltaError(Exception):
    """A delta does not fit a model. The message names both."""


class NoModelError(Exception):
    """A folder has no whole model. The message describes its content."""


def current(folder: Path) -> Path:
    """Return the folder of the model that `current.json` names. Raises NoModelError."""
    try:
        return folder / str(json.loads((folder / CURRENT).read_text("utf-8"))["model"])
    except FileNotFoundError:
        raise NoModelError(f"{folder} has no {CURRENT}: no export to it has ended") from None


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model. tables: the vectors of each table by its name, float32 [rows, dim]. about: `model.json`.

    vocabularies, keyed: by the name of their table. A table with the ids `Dynamic` has the vectors of its keys alone.
    """

    folder: Path
    about: Mapping[str, Any]
    transform: Transform
    tables: Mapping[str, Floats]
    vocabularies: Mapping[str, Vocabulary]
    keyed: Mapping[str, KeyedRows]

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Open a whole model; rows are read when they are used. Raises NoModelError, OSError."""
        folder = Path(folder)
        if not (folder / ABOUT).is_file():
            raise NoModelError(f"{folder} has no {ABOUT}: no export to it has ended; try its current.json")
        if (folder / DELTA).is_file():
            raise NoModelError(f"{folder} has changed rows only; apply them to a model (apply_delta)")
        transform = Transform.of_json((folder / TRANSFORM).read_text("utf-8"))
        keyed = {table.name: KeyedRows.open(folder / table.file) for table in transform.tables if table.default}
        tables = {
            table.name: keyed[table.name].weight if table.default else tensors(folder / table.file)["weight"]
            for table in transform.tables
        }
        vocabularies = {
            table.name: Vocabulary.of((folder / table.vocabulary).read_bytes())
            for table in transform.tables
            if table.vocabulary is not None
        }
        return cls(folder, json.loads((folder / ABOUT).read_text("utf-8")), transform, tables, vocabularies, keyed)

    def inputs(self, columns: Columns) -> dict[str, NDArray[Any]]:
        """Return the inputs of the network for n samples, by name, in their order.

        `dense` is float32 [n, width]. A feature is float32 [n, D]. A sequence is [k, D], the vectors of all samples one
        after the other, with `NAME.lengths`, int64 [n], and `NAME.weights`, float32 [k], if the feature has weights.
        Raises EncodeError.
        """
        found: dict[str, NDArray[Any]] = {"dense": dense_of(self.transform, columns)}
        for feature in self.transform.features:
            ids = ids_of(self.transform, feature, columns, self.vocabularies)
            vectors = self._vectors(feature.table, ids.rows)
            if ids.lengths is None:
                found[feature.name] = vectors
            elif feature.pooling == "None":
                values = (vectors, ids.lengths, ids.weights)
                found |= {name: value for name, value in zip(feature.inputs, values, strict=False) if value is not None}
            else:
                if ids.weights is not None:
                    vectors *= ids.weights[:, np.newaxis]
                sums = np.zeros((len(ids.lengths), vectors.shape[1]), np.float32)
                np.add.at(sums, np.repeat(np.arange(len(sums)), ids.lengths), vectors)
                if feature.pooling == "Mean":
                    sums *= (1 / np.maximum(ids.lengths, 1)).astype(np.float32)[:, np.newaxis]
                found[feature.name] = sums
        return found

    def release_pages(self) -> None:
        """Drop the pages of the tables from the memory of this process: see `tensor_files.release_pages`."""
        for table in self.tables.values():
            release_pages(table)

    def _vectors(self, name: str, rows: Ints) -> Floats:
        """Return the vectors of a table's rows, float32 [k, D], a copy. rows: see `Ids`."""
        table = next(each for each in self.transform.tables if each.name == name)
        if table.default is None:
            return self.tables[name][rows]
        return self.keyed[name].vectors(rows.view(np.uint64), table.default, table.rows)


def apply_delta(base: Path | str, delta: Path | str, to: Path | str) -> None:
    """Create the folder `to` of the model in `base` and the rows in `delta`, with the bytes of a whole export.

    The folder appears atomically. Raises DeltaError if `delta` does not start at the anchor of `base`, or `to` is
    there; OSError.
    """
    base, delta, to = map(Path, (base, delta, to))
    if not (delta / DELTA).is_file() or not (delta / ABOUT).is_file():
        raise DeltaError(f"{delta} has no whole delta; give a folder that `cprjob export --since` wrote")
    if (base / DELTA).is_file() or not (base / ABOUT).is_file():
        raise DeltaError(f"{base} has no whole model; give a folder that an export without --since wrote")
    since = json.loads((delta / DELTA).read_text("utf-8"))["since"]
    anchor = json.loads((base / ABOUT).read_text("utf-8"))["anchor"]
    if since != anchor:
        raise DeltaError(
            f"{delta} has the rows since {since}, but {base} is of {anchor}; apply the deltas between them first"
        )
    if to.exists():
        raise DeltaError(f"{to} is there already; name a new folder")
    transform = Transform.of_json((delta / TRANSFORM).read_text("utf-8"))
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=f".{to.name}-") as scratch:
        made = Path(scratch, "model")
        shutil.copytree(delta, made, ignore=shutil.ignore_patterns(DELTA, "tables"))
        (made / "tables").mkdir()
        for table in transform.tables:
            if table.default is not None:
                old, new = (KeyedRows.open(folder / table.file) for folder in (base, delta))
                write_changed(old, new, tensors(delta / table.file)["removed"], made / table.file)
                release_pages(old.weight)
                continue
            shutil.copyfile(base / table.file, made / table.file)
            changed = tensors(delta / table.file)
            if len(changed["rows"]):
                _replace_rows(made / table.file, changed["rows"], changed["weight"])
        os.rename(made, to)  # noqa: PTH104 -- fails if a folder with files is there by now


def _replace_rows(path: Path, rows: Ints, weight: Floats) -> None:
    """Replace some rows of a table's file, part by part: numpy keeps the interpreter's lock while it replaces rows."""
    mapped = tensors(path, write=True)["weight"]
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        mapped[rows[part]] = weight[part]
        time.sleep(0)  # releases the lock
    release_pages(mapped)
