"""Reads the index of a checkpoint of torch.distributed.checkpoint: the tensors, their parts, and the parts' files.

Its file `.metadata` is a pickle, which is decoded into inert values. Names and numbers of the index are foreign, and
its users check them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cpr_trainer.importing.pickles import Global, PickleError, Record, T, decode

_METADATA = "torch.distributed.checkpoint.metadata"
_MAX_NUMBER = (1 << 63) - 1
_STORAGE_INFO = "torch.distributed.checkpoint.filesystem._StorageInfo"
#: The locations of chunks, by the names of their tensors and their offsets.
Infos = dict[tuple[str, tuple[int, ...]], Record]


@dataclass(frozen=True, slots=True)
class Part:
    """The values from `offsets` on, of `sizes`: `length` bytes of `file`, from its byte `start` on."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class IndexedTensor:
    """A tensor by its name in the state_dict; `dtype` is torch's name of a type, such as float32."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]


def read_index(metadata: bytes) -> tuple[IndexedTensor, ...]:
    """Return the tensors in the bytes of `.metadata`, without other objects. Raises PickleError for another form."""
    state = _state(decode(metadata), f"{_METADATA}.Metadata", "it")
    infos = Infos()
    for key, info in _of(dict, state.get("storage_data"), "storage_data").items():
        index = _state(key, f"{_METADATA}.MetadataIndex", "a key of storage_data")
        if index.get("offset") is not None:
            infos[_of(str, index.get("fqn"), "fqn"), _size(index["offset"], "offset")] = info
    tensors = _of(dict, state.get("state_dict_metadata"), "state_dict_metadata")
    return tuple(
        _tensor(_of(str, name, "a name"), found, infos)
        for name, found in tensors.items()
        if isinstance(found, Record) and found.name == f"{_METADATA}.TensorStorageMetadata"
    )


def _tensor(name: str, found: Record, infos: Infos) -> IndexedTensor:
    state = _of(dict, found.state, name)
    properties = state.get("properties")
    if not isinstance(properties, Record) or not isinstance(properties.state, tuple) or not properties.state:
        raise PickleError(f"{name} has no properties")
    dtype = properties.state[0]
    if not isinstance(dtype, Global):
        raise PickleError(f"{name} has no dtype")
    if not isinstance(chunks := state.get("chunks"), list):
        raise PickleError(f"{name} has no chunks")
    parts = (_part(name, chunk, infos) for chunk in chunks)
    return IndexedTensor(
        name, dtype.name.removeprefix("torch."), _size(state.get("size"), name), tuple(filter(None, parts))
    )


def _part(name: str, chunk: Any, infos: Infos) -> Part | None:
    """Return the location of a chunk; None for one without values, which has no location."""
    state = _state(chunk, f"{_METADATA}.ChunkStorageMetadata", f"a chunk of {name}")
    offsets, sizes = _size(state.get("offsets"), name), _size(state.get("sizes"), name)
    if 0 in sizes:
        return None
    info = infos.get((name, offsets))
    if info is None:
        raise PickleError(f"{name} has a chunk at {list(offsets)} that lies in no file")
    stored = _state(info, _STORAGE_INFO, f"the place of a chunk of {name}")
    if stored.get("transform_descriptors"):
        raise PickleError(f"{name} was written through extensions, such as a compression; write it without")
    file = _of(str, stored.get("relative_path"), f"the file of {name}")
    start, length = (_number(stored.get(field), f"{field} of {name}") for field in ("offset", "length"))
    return Part(offsets, sizes, file, start, length)


def _state(value: Any, name: str, called: str) -> dict[Any, Any]:
    """Return the attributes of an object of a class."""
    if not isinstance(value, Record) or value.name != name:
        found = value.name if isinstance(value, Record | Global) else type(value).__name__
        raise PickleError(f"{called} is a {found}, not a {name}")
    return _of(dict, value.state, called)


def _of(kind: type[T], value: Any, called: str) -> T:
    if not isinstance(value, kind):
        raise PickleError(f"{called} is a {type(value).__name__}, not a {kind.__name__}")
    return value


def _number(value: Any, called: str) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise PickleError(f"{called} is not a number of 64 bits")
    return value


def _size(value: Any, called: str) -> tuple[int, ...]:
    """Return the numbers of a `torch.Size`."""
    if not isinstance(value, Record) or value.name != "torch.Size" or len(value.arguments) != 1:
        raise PickleError(f"a size of {called} is no torch.Size")
    sizes = value.arguments[0]
    if not isinstance(sizes, tuple | list):
        raise PickleError(f"a size of {called} is not a tuple")
    return tuple(_number(size, f"a size of {called}") for size in sizes)
