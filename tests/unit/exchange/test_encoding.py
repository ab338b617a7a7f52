"""Row numbers and values on the wire: each size, each type, and what may be lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from cpr_contract.choices import Precision
from cpr_contract.model import TableSpec
from cpr_contract.spec import JobSpec
from cpr_trainer.exchange.encoding import Encoding
from cpr_trainer.exchange.frames import Operation
from support.shard_job import small_job

PLAIN = Encoding(8, "fp32")
SHORT = Encoding(4, "bf16")


def job_of(*rows: int, precision: Precision = "fp32") -> JobSpec:
    job = small_job(Path("unused"))
    tables = tuple(TableSpec(f"t{place}", count) for place, count in enumerate(rows))
    return replace(job, model=replace(job.model, tables=tables), precision=precision)


@pytest.mark.parametrize(
    ("rows", "number_bytes"), [((10, 5), 4), ((2**30, 2**30), 4), ((2**30, 2**30 + 1), 8), ((2**40,), 8)]
)
def test_row_numbers_take_four_bytes_if_all_rows_of_the_job_fit(
    rows: tuple[int, ...], number_bytes: Literal[4, 8]
) -> None:
    encoding = Encoding.of(job_of(*rows))
    assert encoding == Encoding(number_bytes, "fp32")
    last = np.array([0, sum(rows) - 1], np.int64)
    assert encoding.unpack_numbers(encoding.pack_numbers(last).data.cast("B"), 2).tolist() == last.tolist()


def test_values_travel_in_the_precision_of_the_job() -> None:
    assert Encoding.of(job_of(10, precision="bf16")) == SHORT


@pytest.mark.parametrize("encoding", [PLAIN, SHORT])
def test_a_push_is_read_as_it_was_packed(encoding: Encoding) -> None:
    numbers, values = np.array([3, 1, 2], np.int64), np.array([[1.0, -2.5], [3e-9, 7.0], [0.0, -1e30]], np.float32)
    packed = bytearray(encoding.pack_numbers(numbers).tobytes() + encoding.pack_values(values).tobytes())
    assert len(packed) == encoding.payload_bytes(Operation.PUSH, 3, 6)
    assert encoding.unpack_numbers(memoryview(packed), 3).tolist() == [3, 1, 2]
    found = encoding.unpack_values(memoryview(packed), 3).reshape(3, 2)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, values, rtol=0 if encoding is PLAIN else 2**-8, atol=0)


@pytest.mark.parametrize("encoding", [PLAIN, SHORT])
def test_empty_push_is_packed_and_read(encoding: Encoding) -> None:
    assert encoding.payload_bytes(Operation.PUSH, 0, 0) == 0
    assert encoding.pack_values(np.empty((0, 4), np.float32)).nbytes == 0
    assert encoding.unpack_values(memoryview(bytearray()), 0).shape == (0,)


def test_payload_sizes() -> None:
    operations = (Operation.LOOKUP, Operation.VECTORS, Operation.PUSH)
    assert [PLAIN.payload_bytes(each, 3, 12) for each in operations] == [24, 48, 72]
    assert [SHORT.payload_bytes(each, 3, 12) for each in operations] == [12, 24, 36]
    with pytest.raises(ValueError, match="PING"):
        PLAIN.payload_bytes(Operation.PING, 3, 4)


def test_float32_is_packed_without_a_copy() -> None:
    values = np.ones((2, 3), np.float32)
    assert PLAIN.pack_values(values) is values
