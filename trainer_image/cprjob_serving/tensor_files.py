"""Files of safetensors: a header in JSON, and then the bytes of the tensors, little-endian."""

from __future__ import annotations

import json
import mmap
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: numpy's names of the types of safetensors.
_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "U64": "<u8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
}
_ALIGNMENT = 8
_RELEASED_AT_ONCE = 4 << 20


def tensors(path: Path, *, write: bool = False) -> dict[str, NDArray[Any]]:
    """Return the tensors of a safetensors file by name, mapped into memory. `write`: they may be changed in place."""
    access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
    with path.open("r+b" if write else "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        mapped = mmap.mmap(file.fileno(), 0, access=access)
    found = {}
    for name, each in header.items():
        if name != "__metadata__":
            first, last = each["data_offsets"]
            flat = np.frombuffer(mapped, np.uint8, last - first, 8 + size + first)
            found[name] = flat.view(_DTYPES[each["dtype"]]).reshape(each["shape"])
    return found


def release_pages(tensor: NDArray[Any]) -> None:
    """Drop the pages of a tensor's file from the memory of this process. Later reads map them again.

    The interpreter unmaps a file as a whole, and keeps its lock for a time that grows with the pages that were read.
    This works part by part, and releases the lock in between.
    """
    mapped: Any = tensor
    while not isinstance(mapped, mmap.mmap):
        mapped = mapped.base if isinstance(mapped, np.ndarray) else mapped.obj
    for first in range(0, len(mapped), _RELEASED_AT_ONCE):
        mapped.madvise(mmap.MADV_DONTNEED, first, min(_RELEASED_AT_ONCE, len(mapped) - first))
        time.sleep(0)  # releases the lock


def head(contents: Sequence[tuple[str, str, tuple[int, ...]]]) -> bytes:
    """Return the start of a file. contents: name, type and shape of each tensor, in the order of their bytes.

    Types of more bytes come first.
    """
    header, first = {}, 0
    for name, dtype, shape in contents:
        last = first + int(np.prod(shape, dtype=np.int64)) * np.dtype(_DTYPES[dtype]).itemsize
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}
        first = last
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text
