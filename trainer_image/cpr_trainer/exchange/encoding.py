"""The wire encoding of row numbers and values. Both sides compare theirs in the handshake."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray

from cpr_contract.choices import Precision
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.exchange.frames import Operation

#: bfloat16, the upper half of a float32. numpy lacks the type, so its bits are uint16 here.
Halves = NDArray[np.uint16]
#: Values as they are sent, [k, D]; of several dims one block after the other, [v].
Values = Floats | Halves

#: Values at a time: intermediate results stay in the cache.
_BLOCK = 1 << 16
_NAN = 0x7FC0
_INT32_ROWS = 2**31


def narrow(values: Floats) -> Halves:
    """Round values, float32 [k, D], to the nearest bfloat16, ties to even; NaN stays NaN."""
    flat = values.reshape(-1)
    halves = np.empty(len(flat), np.uint16)
    for first in range(0, len(flat), _BLOCK):
        block = slice(first, first + _BLOCK)
        bits = flat[block].view(np.uint32)
        rounded = bits >> 16
        rounded &= 1
        rounded += 0x7FFF
        rounded += bits
        rounded >>= 16
        halves[block] = rounded
        halves[block][np.isnan(flat[block])] = _NAN
    return halves.reshape(values.shape)


def widen(halves: Halves) -> Floats:
    """Return the same values as float32, of the same shape."""
    bits = halves.astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


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
        return np.dtype(np.uint16 if self.values == "bf16" else np.float32)

    def payload_bytes(self, operation: Operation, count: int, values: int) -> int:
        """Return the payload size of a LOOKUP, VECTORS or PUSH of `count` rows with `values` values in all."""
        match operation:
            case Operation.LOOKUP:
                return count * self.number_bytes
            case Operation.VECTORS:
                return values * self.dtype.itemsize
            case Operation.PUSH:
                return count * self.number_bytes + values * self.dtype.itemsize
            case _:
                raise ValueError(f"{operation.name} carries no rows")

    def pack_numbers(self, numbers: Ints) -> NDArray[Any]:
        """Return row numbers, int64 [k], in their wire type."""
        return numbers.astype(self._integer, copy=False)

    def unpack_numbers(self, payload: memoryview, count: int) -> Ints:
        """Return the row numbers, int64 [count], that a payload begins with."""
        return np.frombuffer(payload, self._integer, count).astype(np.int64, copy=False)

    def pack_values(self, values: Values) -> Values:
        """Return values [k, D], float32 or in their wire type, in that type; copies only to convert."""
        return values if values.dtype == self.dtype else narrow(cast(Floats, values))

    def unpack_values(self, payload: memoryview, count: int) -> Floats:
        """Return the values after `count` row numbers in a payload, float32 [v], read-only."""
        packed = np.frombuffer(payload, self.dtype, offset=count * self.number_bytes)
        return widen(packed) if self.values == "bf16" else packed

    @property
    def _integer(self) -> type[np.signedinteger[Any]]:
        return np.int32 if self.number_bytes == np.int32(0).itemsize else np.int64
