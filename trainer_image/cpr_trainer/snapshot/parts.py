"""The parts of a shard's save: how slots are split, and the bytes of one part.

A part is a header of 32 bytes, then the rows of its slots in slot order, then (with a stateful optimizer) one number of
optimizer state per row; float32, all little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import google_crc32c
import numpy as np
import torch

MIB = 1 << 20
_LARGEST = 64 * MIB
_SMALLEST = MIB
_FEWEST = 32  # parts of a save that is neither small nor huge

_MAGIC = b"CPRPART1"
_HEADER = struct.Struct("<8sIIQQ")  # magic, dim, 1 with state, first slot, rows
_FLOAT = np.dtype("<f4")


class PartError(ValueError):
    """A part's bytes are not those of its place; the message says what differs."""


@dataclass(frozen=True, slots=True)
class SlotRange:
    """The slots [first, first + rows) of a shard's arena: what one part holds."""

    first: int
    rows: int


def plan_parts(rows: int, row_bytes: int) -> tuple[SlotRange, ...]:
    """Split slots [0, rows) into parts of min(64 MiB, a 32nd of the whole), but at least 1 MiB, to whole rows.

    Large enough for an object store to be fast, small enough for memory and for retries. `row_bytes` is the size of one
    row with its state.
    """
    by_size = min(_LARGEST // row_bytes, -(-rows // _FEWEST))
    step = max(1, by_size, -(-_SMALLEST // row_bytes))
    return tuple(SlotRange(first, min(step, rows - first)) for first in range(0, rows, step))


def row_bytes(rows: torch.Tensor, state: torch.Tensor | None) -> int:
    """Bytes of one row [D] with its state in a part."""
    return _FLOAT.itemsize * (rows.shape[1] + (state is not None))


def encode_part(rows: torch.Tensor, state: torch.Tensor | None, slots: SlotRange) -> bytes:
    """Return the bytes of one part; rows [n, D] and state [n] are the shard's whole arena."""
    inside = slice(slots.first, slots.first + slots.rows)
    header = _HEADER.pack(_MAGIC, rows.shape[1], state is not None, slots.first, slots.rows)
    pieces: list[bytes | memoryview] = [header, _little_endian(rows[inside])]
    if state is not None:
        pieces.append(_little_endian(state[inside]))
    return b"".join(pieces)


def decode_part(data: bytes, slots: SlotRange, rows: torch.Tensor, state: torch.Tensor | None) -> None:
    """Copy a part's bytes into their slots of rows [n, D] and state [n]; PartError, before any copy, if not theirs."""
    dim = rows.shape[1]
    expected = (_MAGIC, dim, int(state is not None), slots.first, slots.rows)
    if len(data) != _HEADER.size + slots.rows * row_bytes(rows, state):
        raise PartError(f"has {len(data)} bytes for {slots.rows} rows")
    found = _HEADER.unpack_from(data)
    if found != expected:
        raise PartError(f"begins with {found}, not {expected}")
    numbers = np.frombuffer(data, _FLOAT, offset=_HEADER.size)
    inside = slice(slots.first, slots.first + slots.rows)
    split = slots.rows * dim
    rows.numpy()[inside] = numbers[:split].reshape(slots.rows, dim)
    if state is not None:
        state.numpy()[inside] = numbers[split:]


def checksum(data: bytes) -> int:
    """CRC-32C of an object's bytes, as manifests carry it."""
    return int(google_crc32c.value(data))


def _little_endian(tensor: torch.Tensor) -> memoryview:
    return tensor.detach().numpy().astype(_FLOAT, copy=False).data
