"""Finds the files that an import names, copies those of a bucket, and opens them all as tensors by name.

Libraries read local files only: the files of a bucket are copied to a temporary folder first. A folder of
torch.distributed.checkpoint (DCP) is decoded by a process without rights (`isolated.py`): this one opens its files,
which must lie in the folder, and assembles each tensor from the parts of all ranks.
"""

from __future__ import annotations

import mmap
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import safetensors
import torch
from torch import Tensor

from cpr_contract.file_uris import is_file_uri, path_of
from cpr_trainer.errors import DataError
from cpr_trainer.importing.checkpoint_index import IndexedTensor, Part
from cpr_trainer.importing.isolated import IsolatedReader, UnreadableError, isolated_reader
from cpr_trainer.importing.rank_files import is_rank_file, open_rank_files
from cpr_trainer.importing.tensors import FLOATS, SourceError, StoredTensor, inside
from cpr_trainer.importing.torch_archive import TORCH_SUFFIXES, open_archive
from cpr_trainer.store import Uris

_S3 = "s3://"
#: The file that makes a folder a checkpoint of torch.distributed.checkpoint.
METADATA = ".metadata"
_SAFETENSORS, _NUMPY = ".safetensors", ".npy"
#: A tensor of this name gets that of its file in front of it: a file for each table.
_PLAIN = {"weight", "ids", "keys"}
_COPIED_BYTES = 16 << 20
_REMEDY = (
    f"Name a {_SAFETENSORS} or {_NUMPY} file, or one of torch.save ({', '.join(TORCH_SUFFIXES)}), or a folder: of such "
    f"files, of DynamicEmbDump, or of DCP ({METADATA})."
)
_DCP_REMEDY = "Save it again by torch.distributed.checkpoint.save, and copy the whole folder."
_DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "I64": torch.int64,
    "I32": torch.int32,
    "U64": torch.uint64,
}


@contextmanager
def opened(sources: Sequence[str], uris: Uris, scratch: Path | None = None) -> Iterator[Mapping[str, StoredTensor]]:
    """Open all tensors of some files and folders, here or in a bucket, by name.

    `scratch` is the folder of temporary files: those of a bucket, and the tensors of a DCP that are read. Raises
    SourceError for a source that cannot be read or has a name twice, StoreError.
    """
    found: dict[str, StoredTensor] = {}
    with ExitStack() as stack:
        opening = _Opening(uris, stack)
        for source in sources:
            staging = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cprjob-import-", dir=scratch)))
            for tensor in opening.tensors(source, staging):
                if tensor.name in found:
                    raise SourceError(
                        f"The tensor {tensor.name} is in {found[tensor.name].source} and in {tensor.source}.",
                        "Import one of them.",
                    )
                found[tensor.name] = tensor
        yield found


@dataclass(frozen=True, eq=False)
class _Opening:
    """Opens sources. Its `stack` closes them."""

    uris: Uris
    stack: ExitStack

    @cached_property
    def _reader(self) -> IsolatedReader:
        """One process reads all indices of torch; other sources need none."""
        return self.stack.enter_context(isolated_reader())

    def tensors(self, source: str, staging: Path) -> Iterator[StoredTensor]:
        """Yield the tensors of a source. Raises SourceError, StoreError."""
        if source.startswith(_S3):
            path = self._fetched(source, staging)
        else:
            path = path_of(source) if is_file_uri(source) else Path(source)
        if (path / METADATA).is_file():
            tensors = staging / "tensors"
            tensors.mkdir()
            yield from open_checkpoint(path / METADATA, tensors, self._reader)
            return
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        of_ranks = [each for each in files if is_rank_file(each.name)]
        files = [each for each in files if each.suffix in _SUFFIXES]
        if not files and not of_ranks:
            raise SourceError(f"{path} has no file that can be imported, or is not there.", _REMEDY)
        for file in files:
            if file.suffix in TORCH_SUFFIXES:
                yield from open_archive(file, self.stack, self._reader)
            else:
                yield from _OPENERS[file.suffix](file, self.stack)
        yield from open_rank_files(of_ranks)

    def _fetched(self, source: str, staging: Path) -> Path:
        """Copy the files of a URI into a folder; return its path. Raises SourceError, StoreError."""
        try:
            if source.endswith(_SUFFIXES):
                return self._fetch(source, inside(staging, source.rpartition("/")[2]))
            return self._fetched_folder(source.rstrip("/") + "/", staging / "files")
        except DataError as error:
            raise SourceError(f"{source} cannot be imported: {error.message}", _REMEDY) from error

    def _fetched_folder(self, source: str, folder: Path) -> Path:
        try:
            metadata = self._fetch(source + METADATA, folder / METADATA)
        except DataError:
            for each in self.uris.find(source):
                if each.endswith(_SUFFIXES) or is_rank_file(each):
                    self._fetch(each, inside(folder, unquote(each.removeprefix(source))))
            return folder
        files = {part.file for tensor in read_checkpoint(metadata, self._reader) for part in tensor.parts}
        for name in sorted(files):
            self._fetch(source + quote(name), inside(folder, name))
        return folder

    def _fetch(self, uri: str, path: Path) -> Path:
        version = self.uris.version(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        with self.uris.open(uri, version) as source, path.open("wb") as copy:
            shutil.copyfileobj(source, copy, _COPIED_BYTES)
        return path


def _open_safetensors(path: Path, stack: ExitStack) -> Iterator[StoredTensor]:
    try:
        file = stack.enter_context(safetensors.safe_open(path, framework="pt"))
    except (safetensors.SafetensorError, OSError) as error:
        raise SourceError(f"{path} cannot be read: {error}.", "Save it again, or copy it again.") from error
    for name in file.keys():  # noqa: SIM118 -- it is not a mapping
        piece = file.get_slice(name)
        full_name = f"{path.stem}.{name}" if name in _PLAIN else name
        dtype = _DTYPES.get(piece.get_dtype(), piece.get_dtype())
        yield StoredTensor(full_name, tuple(piece.get_shape()), dtype, str(path), partial(_read, file, name))


def _read(file: Any, name: str, first: int, last: int) -> Tensor:
    piece = file.get_slice(name)
    return piece[first:last] if piece.get_shape() else file.get_tensor(name)  # type: ignore[no-any-return]


def _open_numpy(path: Path, _stack: ExitStack) -> Iterator[StoredTensor]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise SourceError(f"{path} cannot be read: {error}.", "Save it again by numpy.save.") from error
    try:
        dtype: torch.dtype | str = torch.from_numpy(np.empty(0, array.dtype)).dtype
    except TypeError:
        dtype = str(array.dtype)

    def read(first: int, last: int) -> Tensor:
        return torch.from_numpy(np.array(array[first:last] if array.ndim else array))  # a copy

    yield StoredTensor(path.stem, array.shape, dtype, str(path), read)


_OPENERS: dict[str, Callable[[Path, ExitStack], Iterator[StoredTensor]]] = {
    _SAFETENSORS: _open_safetensors,
    _NUMPY: _open_numpy,
}
_SUFFIXES = (*_OPENERS, *TORCH_SUFFIXES)


# --- Folders of torch.distributed.checkpoint


def read_checkpoint(path: Path, reader: IsolatedReader) -> tuple[IndexedTensor, ...]:
    """Return the tensors in the index of the checkpoint with its metadata at `path`. Raises SourceError."""
    try:
        return reader.index(path.read_bytes())
    except (OSError, UnreadableError) as error:
        raise SourceError(f"{path} cannot be read: {error}.", _DCP_REMEDY) from error


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
        shape, dtype = self.indexed.shape, getattr(torch, self.indexed.dtype)
        staged = torch.float32 if dtype in FLOATS else dtype
        try:
            boxes = [_slices(part, shape) for part in self.indexed.parts]
            if not prod(shape):
                return torch.empty(shape, dtype=staged)
            if not _tile(boxes, shape):
                raise UnreadableError(f"its parts are not {list(shape)} together")  # noqa: TRY301 -- with the name, below
            tensor = torch.from_file(str(self.staging), shared=True, size=prod(shape), dtype=staged).view(shape)
            for part, box in zip(self.indexed.parts, boxes, strict=True):
                tensor[box].copy_(self._read(part, dtype))
        except (OSError, ValueError, RuntimeError, UnreadableError) as error:
            raise SourceError(
                f"{self.folder}: the tensor {self.indexed.name} cannot be read: {error}.", _DCP_REMEDY
            ) from error
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
