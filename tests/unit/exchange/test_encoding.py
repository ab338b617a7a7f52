"""Row numbers and values on the wire: each size, each type, and what may be lost."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_contract.choices import Precision
from cpr_contract.model import DynamicSpec, TableSpec
from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.access import find_access
from cpr_trainer.embedding.bfloat16 import converted
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.exchange.encoding import Encoding, RowNames
from cpr_trainer.exchange.frames import FrameError
from support.shard_job import small_job

PLAIN = Encoding(8, "fp32", "fp32")
SHORT = Encoding(4, "bf16", "bf16")


def job_of(*rows: int, precision: Precision = "fp32", of_tables: tuple[Precision, ...] = ()) -> JobSpec:
    job = small_job(Path("unused"))
    tables = tuple(
        TableSpec(f"t{place}", count, precision=of_tables[place] if of_tables else "fp32")
        for place, count in enumerate(rows)
    )
    return replace(job, model=replace(job.model, tables=tables), precision=precision)


@pytest.mark.parametrize(
    ("rows", "number_bytes"), [((10, 5), 4), ((2**30, 2**30), 4), ((2**30, 2**30 + 1), 8), ((2**40,), 8)]
)
def test_row_numbers_take_four_bytes_if_all_rows_of_the_job_fit(
    rows: tuple[int, ...], number_bytes: Literal[4, 8]
) -> None:
    encoding = Encoding.of(job_of(*rows))
    assert encoding == Encoding(number_bytes, "fp32", "fp32")
    last = np.array([0, sum(rows) - 1], np.int64)
    assert encoding.unpack_numbers(encoding.pack_numbers(last).data.cast("B"), 2).tolist() == last.tolist()


def test_values_travel_in_the_precision_of_the_job() -> None:
    assert Encoding.of(job_of(10, precision="bf16")) == SHORT


@pytest.mark.parametrize(
    ("of_tables", "vectors"), [(("bf16", "bf16"), "bf16"), (("bf16", "fp32"), "fp32"), (("fp32", "fp32"), "fp32")]
)
def test_vectors_travel_in_two_bytes_if_all_rows_have_two(of_tables: tuple[Precision, ...], vectors: Precision) -> None:
    assert Encoding.of(job_of(10, 5, of_tables=of_tables)) == Encoding(4, vectors, "fp32")


@pytest.mark.parametrize("encoding", [PLAIN, SHORT])
def test_gradients_are_read_as_they_were_packed(encoding: Encoding) -> None:
    values = np.array([[1.0, -2.5], [3e-9, 7.0], [0.0, -1e30]], np.float32)
    packed = converted(values, encoding.gradient_type)
    found = encoding.unpack_gradients(packed.data.cast("B")).reshape(3, 2)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, values, rtol=0 if encoding is PLAIN else 2**-8, atol=0)


def test_empty_push_is_read() -> None:
    assert SHORT.unpack_gradients(memoryview(b"")).shape == (0,)


def dynamic_job(*, shards: int) -> JobSpec:
    """Two static tables of two dims, and between them three dynamic ones: the last two are a band."""
    job = replace(small_job(Path("unused")), shards=shards)
    counts = DynamicSpec(min_steps=2)
    tables = (
        TableSpec("a", 40, dim=2),
        TableSpec("b", 4 * 4096, dim=2, ids="Dynamic", dynamic=DynamicSpec()),
        TableSpec("c", 4096, dim=2, ids="Dynamic", dynamic=counts),
        TableSpec("d", 30, dim=3),
        TableSpec("e", 4 * 4096, dim=2, ids="Dynamic", dynamic=counts),
    )
    return replace(job, model=replace(job.model, tables=tables))


_KEY = st.integers(-(2**63), 2**63 - 1)
_IDS = st.lists(st.tuples(st.integers(0, 39), _KEY, _KEY, st.integers(0, 29), _KEY))


@given(_IDS, st.integers(1, 4))
def test_rows_with_keys_are_read_as_they_were_packed(ids: list[tuple[int, ...]], shards: int) -> None:
    job = dynamic_job(shards=shards)
    placement = Placement.of(job.model, shards)
    names = RowNames.of(job, placement)
    samples = np.array(ids, np.int64).reshape(-1, 5)
    rows = find_access(placement, samples).unique
    packed, ends = names.pack(rows)
    numbers, keys = list[int](), dict[tuple[int, int], list[int]]()
    for shard, (start, end) in enumerate(pairwise((0, *ends))):
        payload, on_shard = packed[start:end].tobytes(), rows.on_shard(shard)
        count = on_shard.stop - on_shard.start
        found, rest = names.unpack(memoryview(payload + b"rest"), count)
        assert bytes(rest) == b"rest"
        assert len(payload) <= names.most_bytes(count)
        numbers += found.numbers.tolist()
        for band, (of_band, tables) in enumerate(found.keys):
            for key, table in zip(of_band.tolist(), tables.tolist(), strict=True):
                keys.setdefault((band, table), []).append(key)
        for size in range(len(payload)):
            with pytest.raises(FrameError):
                names.unpack(memoryview(payload[:size]), count)
    columns = {(0, 0): 1, (1, 0): 2, (1, 1): 4}
    expected = {of: np.unique(samples[:, column].view(np.uint64)).tolist() for of, column in columns.items()}
    assert keys == {of: each for of, each in expected.items() if each}
    of_d = samples[:, 3] + placement.offsets[3]
    assert sorted(numbers) == np.unique(np.concatenate((samples[:, 0], of_d))).tolist()


def test_float32_is_packed_without_a_copy() -> None:
    values = np.ones((2, 3), np.float32)
    assert converted(values, PLAIN.vector_type) is values
