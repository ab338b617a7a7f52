"""Folders of torch.distributed.checkpoint: which tensors are there, and one of them at a time, put together from ranks.

Its metadata is a pickle, and a pickle may run any code where it is read. Only the classes that metadata consists of are
taken from it. The tensors themselves are read by torch with `weights_only`.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from enum import EnumType
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from cpr_trainer.importing.tensors import FLOATS, SourceError, StoredTensor

_REMEDY = "Save it again by torch.distributed.checkpoint.save, and copy the whole folder."
_PACKAGE = "torch.distributed.checkpoint."
_CLASSES = {
    f"{_PACKAGE}metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    f"{_PACKAGE}filesystem": {"_StorageInfo"},
    "collections": {"OrderedDict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
}


def read_metadata(path: Path) -> Metadata:
    """Read what a checkpoint holds. Raises SourceError."""
    try:
        with path.open("rb") as file:
            found = _Unpickler(file).load()
    except Exception as error:  # whatever a damaged pickle leads to
        raise SourceError(f"{path} cannot be read: {error}.", _REMEDY) from error
    if not isinstance(found, Metadata):
        raise SourceError(f"{path} is not the metadata of a checkpoint.", _REMEDY)
    return found


def files_of(metadata: Metadata) -> tuple[str, ...]:
    """Return the files of a checkpoint, by their paths in its folder. Raises SourceError."""
    names = {str(info.relative_path) for info in (metadata.storage_data or {}).values()}
    if outside := [name for name in names if name.startswith("/") or ".." in name.split("/")]:
        raise SourceError(f"A checkpoint names files outside of its folder: {outside[0]}.", _REMEDY)
    return tuple(sorted(names))


def open_checkpoint(path: Path, scratch: Path) -> Iterator[StoredTensor]:
    """Yield the tensors of a checkpoint, whose metadata is at `path`.

    Each is put together in a file below `scratch` when it is first read. Raises SourceError.
    """
    metadata, folder = read_metadata(path), path.parent
    for name, what in metadata.state_dict_metadata.items():
        if isinstance(what, TensorStorageMetadata):
            staged = _Staged(folder, metadata, name, what, scratch)
            yield StoredTensor(name, tuple(what.size), what.properties.dtype, str(folder), partial(_rows, staged))


def _rows(staged: _Staged, first: int, last: int) -> Tensor:
    tensor = staged.tensor
    return tensor[first:last] if tensor.dim() else tensor


@dataclass(frozen=True, eq=False)
class _Staged:
    """One tensor, all ranks' parts of it in a mapped file below `scratch`, as float32 if it is of floats."""

    folder: Path
    metadata: Metadata
    name: str
    what: TensorStorageMetadata
    scratch: Path

    @cached_property
    def tensor(self) -> Tensor:
        """The tensor. Raises SourceError."""
        size, dtype = self.what.size, self.what.properties.dtype
        kept = torch.float32 if dtype in FLOATS else dtype
        if size.numel():
            file = self.scratch / f"tensor-{len(tuple(self.scratch.iterdir()))}"
            tensor = torch.from_file(str(file), shared=True, size=size.numel(), dtype=kept).view(size)
        else:
            tensor = torch.empty(size, dtype=kept)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that this is one process
                load({self.name: tensor}, storage_reader=_Reader(self.folder, self.metadata), no_dist=True)
        except (Exception, CheckpointException) as error:  # the latter is no Exception
            causes = [cause for cause, _ in error.failures.values()] if isinstance(error, CheckpointException) else []
            why = str(next(iter(causes), error)).partition("\n")[0]
            raise SourceError(f"{self.folder}: the tensor {self.name} cannot be read: {why}.", _REMEDY) from error
        return tensor


class _Reader(FileSystemReader):
    """A reader with metadata that was read before."""

    def __init__(self, path: Path, metadata: Metadata) -> None:
        super().__init__(path)
        self._metadata = metadata

    def read_metadata(self, *_arguments: Any, **_names: Any) -> Metadata:
        """Return the metadata."""
        return self._metadata


def _enum_member(owner: Any, name: str) -> Any:
    """Return a member of an enumeration, which Python before 3.11.4 pickles as `getattr(class, name)`.

    Raises UnpicklingError for the attribute of anything else.
    """
    if isinstance(owner, EnumType):
        return owner[name]
    raise pickle.UnpicklingError(f"it would load {owner!r}.{name}, which no metadata consists of")


class _Unpickler(pickle.Unpickler):
    """Makes metadata, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class that metadata consists of. Raises UnpicklingError for all else."""
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if name in _CLASSES.get(module, ()):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        raise pickle.UnpicklingError(f"it would load {module}.{name}, which no metadata consists of")
