"""The wire encoding of the names of rows and of values. Both sides compare `Encoding` in the handshake."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from cpr_contract.choices import Precision
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.embedding.bfloat16 import DTYPES, as_floats
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.exchange.frames import FrameError
from cprjob_serving.hashes import U64

_INT32_ROWS = 2**31
_KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class Encoding:
    """Row numbers of `number_bytes`, little-endian; vectors and gradients as float32, or as bfloat16."""

    number_bytes: Literal[4, 8]
    vectors: Precision
    gradients: Precision

    @classmethod
    def of(cls, job: JobSpec) -> Self:
        """Return the encoding of a job: four bytes for numbers if all fit, and values in its precision.

        If all tables are in bfloat16, so are vectors, which are then exact, whatever the job's precision is.
        """
        rows = sum(table.rows for table in job.model.tables)
        halves = all(table.precision == "bf16" for table in job.model.tables)
        return cls(4 if rows <= _INT32_ROWS else 8, "bf16" if halves else job.precision, job.precision)

    @property
    def vector_type(self) -> np.dtype[Any]:
        """The wire type of vectors: float32, or uint16 for the bits of a bfloat16."""
        return np.dtype(DTYPES[self.vectors])

    @property
    def gradient_type(self) -> np.dtype[Any]:
        """The wire type of gradients, as that of vectors."""
        return np.dtype(DTYPES[self.gradients])

    def pack_numbers(self, numbers: Ints) -> NDArray[Any]:
        """Return row numbers, int64 [k], in their wire type."""
        return numbers.astype(self._integer, copy=False)

    def unpack_numbers(self, payload: memoryview, count: int) -> Ints:
        """Return the row numbers, int64 [count], that a payload begins with."""
        return np.frombuffer(payload, self._integer, count).astype(np.int64, copy=False)

    def unpack_gradients(self, payload: memoryview) -> Floats:
        """Return the gradients in a payload without its row names, float32 [v], read-only."""
        return as_floats(np.frombuffer(payload, self.gradient_type))

    @property
    def _integer(self) -> type[np.signedinteger[Any]]:
        return np.int32 if self.number_bytes == np.int32(0).itemsize else np.int64


@dataclass(frozen=True, slots=True, eq=False)
class FrameRows:
    """The rows that a frame names. numbers: int64 [m], of static tables.

    keys: of each band of dynamic tables the keys, uint64 [k], and the place in the band of the table of each, int64.
    """

    numbers: Ints
    keys: tuple[tuple[U64, Ints], ...]


@dataclass(frozen=True, slots=True, eq=False)
class RowNames:
    """The names of rows in frames of a job: numbers, and 64-bit keys in a block of their own for each dynamic table.

    Names in a job with dynamic tables begin with the number of keys of each, uint32, band after band. key_bands: these
    bands, with the number of their tables.
    """

    encoding: Encoding
    placement: Placement
    key_bands: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, job: JobSpec, placement: Placement) -> Self:
        """Return those of a job. placement: of its rows."""
        bands = [band for band in range(placement.table_bands) if placement.is_dynamic(band)]
        return cls(Encoding.of(job), placement, tuple((band, placement.tables_in(band)) for band in bands))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements of packed names."""
        return np.dtype(np.int32 if self.key_bands else f"<i{self.encoding.number_bytes}")

    def pack(self, rows: UniqueRows) -> tuple[NDArray[Any], tuple[int, ...]]:
        """Return the names of rows, shard after shard, and where those of each end, int [S]."""
        if not self.key_bands:
            ends = tuple(rows.on_shard(shard).stop for shard in range(rows.shards))
            return self.encoding.pack_numbers(rows.numbers), ends
        parts = [self._parts_of(rows, shard) for shard in range(rows.shards)]
        sizes = [sum(map(len, of_shard)) for of_shard in parts]
        return np.concatenate([each for of_shard in parts for each in of_shard]), tuple(accumulate(sizes))

    def _parts_of(self, rows: UniqueRows, shard: int) -> list[NDArray[np.int32]]:
        """Return the parts of the names of the rows on a shard: the numbers of keys, row numbers, and keys."""
        counts, keys, dynamic = list[Ints](), list[Ints](), dict(self.key_bands)
        static = [rows.numbers[:0]]
        for band in range(self.placement.table_bands):
            cell = rows.cells(band)[shard]
            if band not in dynamic:
                static.append(rows.numbers[cell])
                continue
            tables = rows.places[cell] - self.placement.cells[shard * rows.bands + band]
            counts.append(np.bincount(tables, minlength=dynamic[band]))
            keys.append(rows.numbers[cell])
        names = self.encoding.pack_numbers(np.concatenate(static))
        head = np.concatenate(counts).astype(np.int32)
        return [head, names.view(np.int32), *(each.view(np.int32) for each in keys)]

    def unpack(self, payload: memoryview, count: int) -> tuple[FrameRows, memoryview]:
        """Return the `count` rows that a payload begins with, and the rest of it. Raises FrameError."""
        if not self.key_bands:
            end = count * self.encoding.number_bytes
            if end > len(payload):
                raise FrameError(f"{len(payload)} bytes for {count} rows")
            return FrameRows(self.encoding.unpack_numbers(payload, count), ()), payload[end:]
        tables, number_bytes = self._tables, self.encoding.number_bytes
        head = np.dtype(np.uint32).itemsize * tables
        sizes = np.frombuffer(payload, np.uint32, tables).astype(np.int64) if len(payload) >= head else None
        numbers = -1 if sizes is None else count - int(sizes.sum())
        end = head + numbers * number_bytes + _KEY_BYTES * (count - numbers)
        if sizes is None or numbers < 0 or end > len(payload):
            raise FrameError(f"{len(payload)} bytes for {count} rows, of which some are of dynamic tables")
        keys, first, table = list[tuple[U64, Ints]](), head + numbers * number_bytes, 0
        for _, its_tables in self.key_bands:
            of_tables = np.repeat(np.arange(its_tables), sizes[table : table + its_tables])
            # The copy is aligned.
            keys.append((np.frombuffer(payload, np.uint64, len(of_tables), first).copy(), of_tables))
            first, table = first + _KEY_BYTES * len(of_tables), table + its_tables
        return FrameRows(self.encoding.unpack_numbers(payload[head:], numbers), tuple(keys)), payload[end:]

    def most_bytes(self, rows: int) -> int:
        """Return the size of the names of this many rows at most."""
        number_bytes = _KEY_BYTES if self.key_bands else self.encoding.number_bytes
        return np.dtype(np.uint32).itemsize * self._tables + rows * number_bytes

    @property
    def _tables(self) -> int:
        return sum(tables for _, tables in self.key_bands)
