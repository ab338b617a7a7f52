"""The wire encoding of row numbers and values. Both sides compare theirs in the handshake."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from cpr_contract.choices import Precision
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Floats, Ints, Values
from cpr_trainer.embedding.bfloat16 import DTYPES, as_floats, converted
from cpr_trainer.exchange.frames import Operation

_INT32_ROWS = 2**31


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
        """Return values [k, D], float32 or bfloat16, in their wire type; copies only to convert."""
        return converted(values, self.dtype)

    def unpack_values(self, payload: memoryview, count: int) -> Floats:
        """Return the values after `count` row numbers in a payload, float32 [v], read-only."""
        return as_floats(np.frombuffer(payload, self.dtype, offset=count * self.number_bytes))

    @property
    def _integer(self) -> type[np.signedinteger[Any]]:
        return np.int32 if self.number_bytes == np.int32(0).itemsize else np.int64
