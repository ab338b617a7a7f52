"""Opens a file of `torch.save`: a zip archive with an index, and a file of raw numbers for each storage.

The index is decoded by the process without rights. This one maps the file, and copies the numbers of those rows that
are read: no class is loaded, and a table need not fit into memory.
"""

from __future__ import annotations

import mmap
import struct
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from cpr_trainer.importing.isolated import IsolatedReader, UnreadableError
from cpr_trainer.importing.tensors import SourceError, StoredTensor
from cpr_trainer.importing.torch_index import View

#: The ends of the names of such files.
TORCH_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")
_INDEX, _BYTE_ORDER, _STORAGE = "data.pkl", "byteorder", "data/"
_REMEDY = "Save it again by torch.save(model.state_dict(), FILE) of PyTorch 1.6 or newer."
#: A local header in a zip archive: its signature, 22 bytes, and the lengths of a name and of a field after it.
_LOCAL = struct.Struct("<4s22xHH")
_SIGNATURE = b"PK\x03\x04"


def open_archive(path: Path, stack: ExitStack, reader: IsolatedReader) -> Iterator[StoredTensor]:
    """Yield the tensors of a file, by their names in nested dictionaries. `stack` closes it.

    Raises SourceError for a file that is damaged, or of another form.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {info.filename.partition("/")[2]: info for info in archive.infolist()}
            if _INDEX not in entries:
                raise UnreadableError("it has no index")  # noqa: TRY301 -- with the file, below
            if _BYTE_ORDER in entries and archive.read(entries[_BYTE_ORDER]) != b"little":
                raise UnreadableError("its numbers are big endian")  # noqa: TRY301 -- the same
            views = reader.views(archive.read(entries[_INDEX]))
            if not views:
                raise UnreadableError("it has no tensor in a dictionary")  # noqa: TRY301 -- the same
        content = stack.enter_context(path.open("rb"))
        mapped = stack.enter_context(mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ))
        opened = [_Rows.of(view, mapped, entries.get(_STORAGE + view.storage)) for view in views]
    except (OSError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile, UnreadableError) as error:
        raise SourceError(f"{path} cannot be read: {error}.", _REMEDY) from error
    for view, rows in zip(views, opened, strict=True):
        dtype = view.dtype if rows.dtype is None else rows.dtype
        yield StoredTensor(view.name, view.shape, dtype, str(path), rows.read)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """A tensor in a mapped file, with its storage from the byte `start` on. dtype: None if torch does not have it."""

    view: View
    mapped: mmap.mmap
    start: int
    dtype: torch.dtype | None

    @classmethod
    def of(cls, view: View, mapped: mmap.mmap, entry: zipfile.ZipInfo | None) -> _Rows:
        """Find the storage of a tensor. Raises UnreadableError if it is not there, or too short."""
        if entry is None:
            raise UnreadableError(f"{view.name} has no storage")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise UnreadableError(f"the storage of {view.name} is compressed")
        signature, name, field = _LOCAL.unpack_from(mapped, entry.header_offset)
        start = entry.header_offset + _LOCAL.size + name + field
        if signature != _SIGNATURE or start + entry.file_size > len(mapped):
            raise UnreadableError(f"the storage of {view.name} is not there")
        dtype = getattr(torch, view.dtype, None)
        found = cls(view, mapped, start, dtype if isinstance(dtype, torch.dtype) else None)
        if found.dtype is not None:
            held = entry.file_size // found.dtype.itemsize
            if prod(view.shape) > held or view.offset + found.extent(view.shape) > held:
                raise UnreadableError(f"{view.name} {list(view.shape)} is not in its storage of {held} values")
        return found

    def extent(self, shape: tuple[int, ...]) -> int:
        """Return the number of values from the first one to the last one of this part of the tensor."""
        if 0 in shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(shape, self.view.strides, strict=True))

    def read(self, first: int, last: int) -> Tensor:
        """Return rows of the tensor; a scalar itself. A copy."""
        assert self.dtype is not None, "a tensor of a type that torch does not have is never read"  # noqa: S101
        of_all = self.view.shape
        shape = (max(0, min(last, of_all[0]) - first), *of_all[1:]) if of_all else ()
        if 0 in shape:
            return torch.empty(shape, dtype=self.dtype)
        skipped = self.view.offset + (first * self.view.strides[0] if of_all else 0)
        begin = self.start + skipped * self.dtype.itemsize
        with memoryview(self.mapped) as content:
            values = bytearray(content[begin : begin + self.extent(shape) * self.dtype.itemsize])
        return torch.frombuffer(values, dtype=self.dtype).as_strided(shape, self.view.strides)
