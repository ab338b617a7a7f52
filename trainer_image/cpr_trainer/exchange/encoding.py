"""The wire encoding of the names of rows and of values. Both sides compare `Encoding` in the handshake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from cpr_contract.choices import Precision
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Floats, Ints, Values
from cpr_trainer.embedding.bfloat16 import DTYPES, as_floats, converted
from cpr_trainer.embedding.placement import UniqueRows
from cpr_trainer.exchange.frames import FrameError
from cprjob_serving.hashes import U64

_INT32_ROWS = 2**31
_KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class Encoding:
    """Row numbers of `number_bytes`, little-endian; values as float32, or as bfloat16 rounded to nearest."""

    number_bytes: Literal[4, 8]
    values: Precision

    @classmethod
    def of(cls, job: JobSpec) -> Self:
        """Return the encoding of a job: four bytes for numbers if all fit, and values in its precision."""
        rows = sum(table.rows for table in job.model.tables)
        return cls(4 if rows <= _INT32_ROWS else 8, job.precision)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The wire type of values: float32, or uint16 for the bits of a bfloat16."""
        return np.dtype(DTYPES[self.values])

    def pack_numbers(self, numbers: Ints) -> NDArray[Any]:
        """Return row numbers, int64 [k], in their wire type."""
        return numbers.astype(self._integer, copy=False)

    def unpack_numbers(self, payload: memoryview, count: int) -> Ints:
        """Return the row numbers, int64 [count], that a payload begins with."""
        return np.frombuffer(payload, self._integer, count).astype(np.int64, copy=False)

    def pack_values(self, values: Values) -> Values:
        """Return values [k, D], float32 or bfloat16, in their wire type; copies only to convert."""
        return converted(values, self.dtype)

    def unpack_values(self, payload: memoryview) -> Floats:
        """Return the values in a payload without its row names, float32 [v], read-only."""
        return as_floats(np.frombuffer(payload, self.dtype))

    @property
    def _integer(self) -> type[np.signedinteger[Any]]:
        return np.int32 if self.number_bytes == np.int32(0).itemsize else np.int64


@dataclass(frozen=True, slots=True, eq=False)
class FrameRows:
    """The rows that a frame names. numbers: int64 [m], of static tables. keys: uint64 [k], of each dynamic table."""

    numbers: Ints
    keys: tuple[U64, ...]


@dataclass(frozen=True, slots=True)
class RowNames:
    """The names of rows in frames of a job: numbers, and 64-bit keys in a block of their own for each dynamic table.

    Names in a job with dynamic tables begin with the number of keys of each, uint32. key_bands: the bands of these
    tables.
    """

    encoding: Encoding
    key_bands: tuple[int, ...] = ()

    @classmethod
    def of(cls, job: JobSpec) -> Self:
        """Return those of a job."""
        bands = job.model.bands
        return cls(Encoding.of(job), tuple(sorted(bands[table] for table in job.model.dynamic_tables)))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements of packed names."""
        return np.dtype(np.int32 if self.key_bands else f"<i{self.encoding.number_bytes}")

    def pack(self, rows: UniqueRows) -> tuple[NDArray[Any], tuple[int, ...]]:
        """Return the names of rows, shard after shard, and where those of each end, int [S]."""
        if not self.key_bands:
            ends = tuple(rows.on_shard(shard).stop for shard in range(rows.shards))
            return self.encoding.pack_numbers(rows.numbers), ends
        cells = [rows.cells(band) for band in range(rows.bands)]
        parts = [self._pack_shard(rows.numbers, [of_band[shard] for of_band in cells]) for shard in range(rows.shards)]
        return np.concatenate(parts), tuple(np.cumsum([len(part) for part in parts]).tolist())

    def _pack_shard(self, numbers: Ints, cells: Sequence[slice]) -> NDArray[np.int32]:
        static = [numbers[cell] for band, cell in enumerate(cells) if band not in self.key_bands]
        keys = [numbers[cells[band]] for band in self.key_bands]
        names = self.encoding.pack_numbers(np.concatenate([numbers[:0], *static]))
        counts = np.array([len(each) for each in keys], np.int32)
        return np.concatenate([counts, names.view(np.int32), *(each.view(np.int32) for each in keys)])

    def unpack(self, payload: memoryview, count: int) -> tuple[FrameRows, memoryview]:
        """Return the `count` rows that a payload begins with, and the rest of it. Raises FrameError."""
        if not self.key_bands:
            end = count * self.encoding.number_bytes
            if end > len(payload):
                raise FrameError(f"{len(payload)} bytes for {count} rows")
            return FrameRows(self.encoding.unpack_numbers(payload, count), ()), payload[end:]
        head, number_bytes = np.dtype(np.uint32).itemsize * len(self.key_bands), self.encoding.number_bytes
        sizes = np.frombuffer(payload, np.uint32, len(self.key_bands)).tolist() if len(payload) >= head else []
        numbers = count - sum(sizes)
        ends = list(accumulate([numbers * number_bytes, *(size * _KEY_BYTES for size in sizes)], initial=head))
        if not sizes or numbers < 0 or ends[-1] > len(payload):
            raise FrameError(f"{len(payload)} bytes for {count} rows, of which {sum(sizes)} are of dynamic tables")
        blocks = [payload[start:end] for start, end in pairwise(ends)]
        keys = tuple(np.frombuffer(block, np.uint64).copy() for block in blocks[1:])  # the copy is aligned
        return FrameRows(self.encoding.unpack_numbers(blocks[0], numbers), keys), payload[ends[-1] :]

    def most_bytes(self, rows: int) -> int:
        """Return the size of the names of this many rows at most."""
        number_bytes = _KEY_BYTES if self.key_bands else self.encoding.number_bytes
        return np.dtype(np.uint32).itemsize * len(self.key_bands) + rows * number_bytes
