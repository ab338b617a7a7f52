"""Reads the index of a file of `torch.save`: its tensors, and the places of their values in the file's storages.

The index is a pickle, which is decoded into inert values. Names and numbers of it are foreign, and its users check
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cpr_trainer.importing.pickles import PERSISTENT, Global, PickleError, Record, decode

_MAX_NUMBER = (1 << 63) - 1
#: A state_dict has a few levels and some thousand values; a pickle can repeat a value beyond any number.
_MAX_DEPTH, _MAX_VALUES = 32, 1 << 20
_TENSORS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3")
_PARAMETER = "torch._utils._rebuild_parameter"
#: The place of the type in the arguments of the second one. The first one has that of its storage.
_DTYPE = 6
#: The types of storages by the classes that files name.
_STORAGES = {
    "torch.FloatStorage": "float32",
    "torch.DoubleStorage": "float64",
    "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16",
    "torch.LongStorage": "int64",
    "torch.IntStorage": "int32",
    "torch.ShortStorage": "int16",
    "torch.CharStorage": "int8",
    "torch.ByteStorage": "uint8",
    "torch.BoolStorage": "bool",
}


@dataclass(frozen=True, slots=True)
class View:
    """A tensor by its name in nested dictionaries; `dtype` is torch's name of a type, such as float32.

    Element (i, j, ...) is that with the number offset + i strides[0] + j strides[1] + ... in the storage.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    storage: str
    offset: int


def read_views(pickled: bytes) -> tuple[View, ...]:
    """Return the tensors in the bytes of `data.pkl`, without other objects. Raises PickleError for another form."""
    return tuple(_view(name, record) for name, record in _records(decode(pickled)))


def _records(value: Any) -> Iterator[tuple[str, Record]]:
    """Yield the tensors in nested dictionaries and lists, by their names: keys with dots between them."""
    waiting, seen = [("", value, 0)], 0
    while waiting:
        name, each, depth = waiting.pop()
        seen += 1
        if depth > _MAX_DEPTH or seen > _MAX_VALUES:
            raise PickleError("its values are nested too deeply, or too many")
        if isinstance(each, Record):
            record = _tensor_of(name, each)
            if record is not None:
                yield name, record
        elif isinstance(each, dict | list | tuple):
            items = each.items() if isinstance(each, dict) else enumerate(each)
            named = [(f"{name}.{key}" if name else str(key), item, depth + 1) for key, item in items]
            waiting += reversed(named)


def _tensor_of(name: str, record: Record) -> Record | None:
    """Return the record of a tensor, or of that in a parameter; None for another object."""
    if record.name == _PARAMETER and record.arguments and isinstance(record.arguments[0], Record):
        record = record.arguments[0]
    if record.name.startswith("torch.distributed."):
        raise PickleError(
            f"{name or 'it'} is a part of a tensor ({record.name}), whose other parts are on other ranks; save whole "
            "tensors, or use torch.distributed.checkpoint"
        )
    return record if record.name in _TENSORS else None


def _view(name: str, record: Record) -> View:
    arguments = record.arguments
    least = 1 + _DTYPE if record.name == _TENSORS[1] else _DTYPE
    if len(arguments) < least or not isinstance(arguments[0], Record) or arguments[0].name != PERSISTENT:
        raise PickleError(f"{name} has no storage")
    (storage,) = arguments[0].arguments
    if not (isinstance(storage, tuple) and len(storage) >= 3 and storage[0] == "storage"):  # noqa: PLR2004 -- its form
        raise PickleError(f"{name} has no storage")
    kind, key = storage[1:3]
    if not isinstance(kind, Global) or not isinstance(key, str):
        raise PickleError(f"{name} has a storage without a type or a name")
    dtype = _STORAGES.get(kind.name, kind.name)
    if record.name == _TENSORS[1]:
        stated = arguments[_DTYPE]
        dtype = stated.name.removeprefix("torch.") if isinstance(stated, Global) else "unknown"
    shape, strides = (_numbers(each, name) for each in arguments[2:4])
    if len(shape) != len(strides):
        raise PickleError(f"{name} has {len(shape)} dimensions and {len(strides)} strides")
    return View(name, dtype, shape, strides, key, *_numbers((arguments[1],), name))


def _numbers(value: Any, name: str) -> tuple[int, ...]:
    if isinstance(value, Record) and value.name == "torch.Size" and len(value.arguments) == 1:
        (value,) = value.arguments
    numbers = value if isinstance(value, tuple | list) else (None,)
    if any(type(each) is not int or not 0 <= each <= _MAX_NUMBER for each in numbers):
        raise PickleError(f"{name} has a size, a stride or an offset that is no number of 64 bits")
    return tuple(numbers)
