"""Reads folders of torch.distributed.checkpoint: their tensors, one at a time, assembled from the parts of ranks.

A process without rights (`isolated.py`) decodes all bytes. This module opens the files, which must lie in the folder,
and copies the decoded values to their places.
"""

from __future__ import annotations

import mmap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from cpr_trainer.importing.checkpoint_index import IndexedTensor, Part
from cpr_trainer.importing.isolated import IsolatedReader, UnreadableError
from cpr_trainer.importing.tensors import FLOATS, SourceError, StoredTensor, inside

_REMEDY = "Save it again by torch.distributed.checkpoint.save, and copy the whole folder."


def read_checkpoint(path: Path, reader: IsolatedReader) -> tuple[IndexedTensor, ...]:
    """Return the tensors in the index of the checkpoint with its metadata at `path`. Raises SourceError."""
    try:
        return reader.index(path.read_bytes())
    except (OSError, UnreadableError) as error:
        raise SourceError(f"{path} cannot be read: {error}.", _REMEDY) from error


def open_checkpoint(path: Path, scratch: Path, reader: IsolatedReader) -> Iterator[StoredTensor]:
    """Yield the tensors of the checkpoint with its metadata at `path`.

    Each is assembled in a file below `scratch` when it is first read. Raises SourceError.
    """
    folder = path.parent
    for number, indexed in enumerate(read_checkpoint(path, reader)):
        dtype = getattr(torch, indexed.dtype, None)
        staged = _Staged(folder, indexed, scratch / f"tensor-{number}", reader)
        known = dtype if isinstance(dtype, torch.dtype) else indexed.dtype
        yield StoredTensor(indexed.name, indexed.shape, known, str(folder), staged.rows)


@dataclass(frozen=True, eq=False)
class _Staged:
    """One tensor, with the parts of all ranks in the mapped file `staging`, as float32 if it is of floats."""

    folder: Path
    indexed: IndexedTensor
    staging: Path
    reader: IsolatedReader

    def rows(self, first: int, last: int) -> Tensor:
        """Return rows of the tensor; a scalar itself. Raises SourceError."""
        return self._tensor[first:last] if self.indexed.shape else self._tensor

    @cached_property
    def _tensor(self) -> Tensor:
        try:
            return self._assembled()
        except (OSError, ValueError, RuntimeError, UnreadableError) as error:
            raise SourceError(
                f"{self.folder}: the tensor {self.indexed.name} cannot be read: {error}.", _REMEDY
            ) from error

    def _assembled(self) -> Tensor:
        shape, dtype = self.indexed.shape, getattr(torch, self.indexed.dtype)
        staged = torch.float32 if dtype in FLOATS else dtype
        boxes = [_slices(part, shape) for part in self.indexed.parts]
        if not prod(shape):
            return torch.empty(shape, dtype=staged)
        if not _tile(boxes, shape):
            raise UnreadableError(f"its parts are not {list(shape)} together")
        tensor = torch.from_file(str(self.staging), shared=True, size=prod(shape), dtype=staged).view(shape)
        for part, box in zip(self.indexed.parts, boxes, strict=True):
            tensor[box].copy_(self._read(part, dtype))
        return tensor

    def _read(self, part: Part, dtype: torch.dtype) -> Tensor:
        path = inside(self.folder, part.file)
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as content,
            content[part.start : part.start + part.length] as stored,
        ):
            if not 0 < part.length == len(stored):
                raise UnreadableError(f"{path} has {len(content)} bytes, and a part of it ends behind them")
            return self.reader.tensor(stored, dtype, part.sizes)


def _tile(boxes: Sequence[tuple[slice, ...]], shape: tuple[int, ...]) -> bool:
    """Return True if boxes, each inside of the shape, cover every place of it exactly once."""
    if not shape:
        return len(boxes) == 1
    begins, ends = defaultdict(list), defaultdict(list)
    for number, (first, *_) in enumerate(boxes):
        begins[first.start].append(number)
        ends[first.stop].append(number)
    if 0 not in begins:
        return False
    across = dict[int, None]()  # the boxes of one layer: between two borders the same ones
    for border in sorted((begins.keys() | ends.keys()) - {shape[0]}):
        for number in ends[border]:
            across.pop(number)
        across.update(dict.fromkeys(begins[border]))
        if not _tile([boxes[number][1:] for number in across], shape[1:]):
            return False
    return shape[0] in ends


def _slices(part: Part, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the slices of a part in its tensor. Raises UnreadableError for one that is not wholly in it."""
    places = tuple(slice(offset, offset + size) for offset, size in zip(part.offsets, part.sizes, strict=True))
    if len(places) != len(shape) or any(place.stop > size for place, size in zip(places, shape, strict=True)):
        raise UnreadableError(f"a part {list(part.sizes)} at {list(part.offsets)} is not in {list(shape)}")
    return places
