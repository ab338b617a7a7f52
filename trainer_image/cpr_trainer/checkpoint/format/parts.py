"""The structure of a shard's save: the chain of earlier saves below it, and its parts.

A part is a head, the rows, then the state of their optimizers, little-endian, as in memory; rows of fewer bits as
records (`quantise`). The head is a header of 40 bytes and the places of the rows: nothing for consecutive rows, else
a bitmap of the part's span or an offset of 4 bytes per row, the shorter one, padded to 8 bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from cpr_contract.choices import Rebase
from cpr_contract.manifests import ManifestRef, Part
from cpr_trainer.arrays import Ints
from cpr_trainer.checkpoint.format.quantise import ValueBits, record_bytes

#: A restore reads the saves of a chain one after another.
_LONGEST_CHAIN = 32

MIB = 1 << 20
_LARGEST = 64 * MIB
_SMALLEST = MIB
_FEWEST = 96  # parts of a save that is neither small nor huge

_MAGIC = b"CPRPART2"
_HEADER = struct.Struct("<8sIHHQQQ")  # magic, dim, bits, state, rows, first place, span
_OFFSET = np.dtype("<u4")
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Link:
    """A complete save that may be a base of the next one.

    It has `rows` rows, of changes up to `epoch` of the arena; a full save would have had `full_rows` then.
    """

    ref: ManifestRef
    epoch: int
    rows: int
    full_rows: int


def basis(rule: Rebase, links: tuple[Link, ...]) -> tuple[Link, ...]:
    """Return the chain of the next save, oldest first; empty for a full save.

    `links` are the last full save and all that were committed after it, oldest first. The rules and their names are
    those of Check-N-Run (Eisenman et al., NSDI 2022).
    """
    if not links:
        return ()
    sizes = [link.rows / link.full_rows if link.full_rows else 0.0 for link in links[1:]]  # relative to a full save
    match rule:
        case "Consecutive":
            return () if sum(sizes) >= 1 or len(links) >= _LONGEST_CHAIN else links
        case "OneShot":
            return links[:1]
        case "Intermittent":
            return () if pays(sizes) else links[:1]
        case _:
            assert_never(rule)


def pays(sizes: list[float]) -> bool:
    """Return whether a full save pays now, after saves of `sizes` S_1 to S_i on the last full one (size 1).

    It does if F <= I: F = 1 + S_1 + ... + S_i is the size of a full save and as many small ones after it, with the same
    growth; I = (i + 1) S_i is the least size of the next saves without one.
    """
    return bool(sizes) and 1 + sum(sizes) <= (len(sizes) + 1) * sizes[-1]


class PartError(ValueError):
    """A part differs from its manifest; the message has the difference."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The contents of a part: `rows` rows, at places in [first, first + span).

    Each is `dim` values of `bits` bits, and `state` float32 of its optimizer.
    """

    dim: int
    bits: ValueBits
    state: int
    rows: int
    first: int
    span: int

    @classmethod
    def of(cls, part: Part, dim: int, bits: ValueBits, *, state: int) -> Shape:
        """Return the shape of a part by its manifest."""
        return cls(dim, bits, state, part.rows, part.first, part.span)

    @classmethod
    def read(cls, head: bytes | bytearray) -> Shape:
        """Return the shape in the head of a part. Raises PartError."""
        if len(head) < _HEADER.size or not head.startswith(_MAGIC):
            raise PartError(f"begins with {bytes(head[: len(_MAGIC)])!r}, not {_MAGIC!r}")
        _, dim, bits, state, rows, first, span = _HEADER.unpack_from(head)
        return cls(dim, bits, state, rows, first, span)

    @property
    def contiguous(self) -> bool:
        """True if the rows follow one another."""
        return self.rows == self.span

    @property
    def head_bytes(self) -> int:
        """Size of the head."""
        return _HEADER.size + -(-self._places_bytes // _ALIGNMENT) * _ALIGNMENT

    @property
    def size_bytes(self) -> int:
        """Size of the part."""
        return self.head_bytes + self.rows * (record_bytes(self.dim, self.bits) + 4 * self.state)

    @property
    def _bitmap(self) -> bool:
        return self.span <= 8 * _OFFSET.itemsize * self.rows

    @property
    def _places_bytes(self) -> int:
        if self.contiguous:
            return 0
        return -(-self.span // 8) if self._bitmap else _OFFSET.itemsize * self.rows

    def head(self, places: Ints) -> bytes:
        """Return the head of a part with rows at these places, ascending."""
        offsets = places - self.first
        if self.contiguous:
            encoded = b""
        elif self._bitmap:
            bits = np.zeros(self.span, np.bool_)
            bits[offsets] = True
            encoded = np.packbits(bits).tobytes()
        else:
            encoded = offsets.astype(_OFFSET).tobytes()
        return (self._header() + encoded).ljust(self.head_bytes, b"\0")

    def places(self, head: bytes | bytearray) -> Ints:
        """Return the places of the rows, ascending, int64 [rows], out of a head. Raises PartError."""
        if bytes(head[: _HEADER.size]) != self._header():
            raise PartError(f"begins with {_HEADER.unpack_from(head)}, not {_HEADER.unpack(self._header())}")
        encoded = memoryview(head)[_HEADER.size : _HEADER.size + self._places_bytes]
        if self.contiguous:
            offsets = np.arange(self.rows)
        elif self._bitmap:
            offsets = np.flatnonzero(np.unpackbits(np.frombuffer(encoded, np.uint8), count=self.span))
        else:
            offsets = np.frombuffer(encoded, _OFFSET).astype(np.int64)
        if len(offsets) != self.rows or offsets.max(initial=0) >= self.span:
            raise PartError(f"names {len(offsets)} places for {self.rows} rows")
        return offsets + self.first

    def _header(self) -> bytes:
        return _HEADER.pack(_MAGIC, self.dim, self.bits, self.state, self.rows, self.first, self.span)


def shape_of(places: Ints, dim: int, bits: ValueBits, *, state: int) -> Shape:
    """Return the shape of a part with rows at these places, ascending, at least one."""
    first, last = int(places[0]), int(places[-1])
    return Shape(dim, bits, state, len(places), first, last - first + 1)


def rows_per_part(rows: int, row_bytes: int) -> int:
    """Return the rows in a part of a shard of `rows` rows: 64 MiB or a 96th of the whole, but at least 1 MiB.

    Object stores are slow for smaller parts. Larger ones would take more memory in flight, and a reader of some places
    would read more of the others. `row_bytes` is the size of one row with its state.
    """
    by_size = min(_LARGEST // row_bytes, -(-rows // _FEWEST))
    return max(1, by_size, -(-_SMALLEST // row_bytes))
