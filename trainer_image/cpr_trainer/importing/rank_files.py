"""Opens the files of a table that `DynamicEmbDump` of NVIDIA's dynamicemb writes: raw numbers, some of each rank.

A table NAME has the files `NAME_emb_KIND.rank_R.world_size_W`, of each kind one for each of W ranks. Row i of a rank is
the i-th entry in all of its files.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cpr_trainer.importing.tensors import SourceError, StoredTensor

_NAME = re.compile(
    r"(?P<table>.+)_emb_(?P<kind>keys|values|scores|opt_values)\.rank_(?P<rank>[0-9]+)\.world_size_(?P<ranks>[0-9]+)"
)
_REMEDY = "Name the folder that DynamicEmbDump wrote, with the files of all ranks."
_KEYS = "keys"
#: The types of the numbers, little endian.
_DTYPES = {_KEYS: torch.int64, "values": torch.float32, "scores": torch.int64, "opt_values": torch.float32}


def is_rank_file(name: str) -> bool:
    """Return True if a file, by its name or path, has a part of a table."""
    return _NAME.fullmatch(name.rpartition("/")[2]) is not None


def open_rank_files(paths: Iterable[Path]) -> Iterator[StoredTensor]:
    """Yield the tensors `NAME_emb_KIND` of files with such names: keys [n], all others [n, k], rank after rank.

    Raises SourceError for a rank without a file, and for a file that does not have as many rows as that of its keys.
    """
    tables = defaultdict[tuple[Path, str], dict[str, dict[int, Path]]](lambda: defaultdict(dict))
    sizes = dict[tuple[Path, str], int]()
    for path, named in ((path, _NAME.fullmatch(path.name)) for path in paths):
        if named is None or int(named["rank"]) >= int(named["ranks"]):
            continue
        table = path.parent, named["table"]
        if sizes.setdefault(table, int(named["ranks"])) != int(named["ranks"]):
            raise SourceError(f"{path.parent} has two dumps of the table {named['table']}.", "Name a folder of one.")
        tables[table][named["kind"]][int(named["rank"])] = path
    for (folder, name), kinds in tables.items():
        for kind in (_KEYS, *kinds):
            ranks, there = sizes[folder, name], kinds.get(kind, {})
            missing = next((rank for rank in range(ranks) if rank not in there), None)
            if missing is not None:
                lost = f"{name}_emb_{kind}.rank_{missing}.world_size_{ranks}"
                raise SourceError(f"{folder / lost} is not there.", _REMEDY)
        keys = _RankFiles.of(kinds[_KEYS], _DTYPES[_KEYS])
        rows = [size // keys.dtype.itemsize for size in keys.sizes]
        for kind, by_rank in kinds.items():
            files = _RankFiles.of(by_rank, _DTYPES[kind])
            width = files.width(rows)
            shape = (sum(rows),) if kind == _KEYS else (sum(rows), width)
            opened = _Rows(files, tuple(np.cumsum([0, *rows]).tolist()), width, shape[1:])
            yield StoredTensor(f"{name}_emb_{kind}", shape, files.dtype, str(folder), opened.read)


@dataclass(frozen=True, slots=True)
class _RankFiles:
    """The files of one kind, by rank, and their sizes in bytes."""

    paths: tuple[Path, ...]
    sizes: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, by_rank: dict[int, Path], dtype: torch.dtype) -> _RankFiles:
        paths = tuple(by_rank[rank] for rank in sorted(by_rank))
        try:
            return cls(paths, tuple(path.stat().st_size for path in paths), dtype)
        except OSError as error:
            raise SourceError(f"{error.filename} cannot be read: {error.strerror}.", _REMEDY) from error

    def width(self, rows: list[int]) -> int:
        """Return the numbers of a row, if each file has `rows`[rank] of them. Raises SourceError otherwise."""
        width = sum(self.sizes) // (max(sum(rows), 1) * self.dtype.itemsize)
        for path, size, count in zip(self.paths, self.sizes, rows, strict=True):
            if size != count * width * self.dtype.itemsize:
                raise SourceError(
                    f"{path} has {size} bytes, which are not {count} rows of numbers of {self.dtype}.", _REMEDY
                )
        return width


@dataclass(frozen=True, slots=True)
class _Rows:
    """Reads rows from files: those of rank r are [starts[r], starts[r + 1]). shape: of a row."""

    files: _RankFiles
    starts: tuple[int, ...]
    width: int
    shape: tuple[int, ...]

    def read(self, first: int, last: int) -> Tensor:
        """Return rows. Raises SourceError if a file has become shorter, or cannot be read."""
        found = list[Tensor]()
        for path, (start, end) in zip(self.files.paths, pairwise(self.starts), strict=True):
            begin, stop = max(first, start), min(last, end)
            if begin < stop:
                found.append(self._part(path, begin - start, stop - begin))
        whole = torch.cat(found) if found else torch.empty(0, dtype=self.files.dtype)
        return whole.view(-1, *self.shape)

    def _part(self, path: Path, first: int, count: int) -> Tensor:
        dtype, numbers = self.files.dtype, count * self.width
        kind = "<i8" if dtype is torch.int64 else "<f4"
        try:
            part = np.fromfile(path, kind, numbers, offset=first * self.width * dtype.itemsize)
        except OSError as error:
            raise SourceError(f"{path} cannot be read: {error}.", _REMEDY) from error
        if len(part) != numbers:
            raise SourceError(f"{path} has become shorter.", _REMEDY)
        return torch.from_numpy(part)
