from __future__ import annotations

import gzip
import io
import tracemalloc
from typing import BinaryIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_contract.spec import TableSpec
from cpr_trainer.data import criteo_stream
from cpr_trainer.data.batch import Batch
from cpr_trainer.data.criteo import CriteoDataset, read_criteo
from cpr_trainer.errors import DataError

TABLES = tuple(TableSpec(f"c{number}", 1000 + number) for number in range(26))


def line(label: object = 1, integers: list[object] | None = None, categories: list[str] | None = None) -> bytes:
    columns = [label, *(integers or range(13)), *(categories or [f"{k:08x}" for k in range(26)])]
    return "\t".join(map(str, columns)).encode()


def read(data: bytes, *, tables: tuple[TableSpec, ...] = TABLES, allowed: int = 0) -> CriteoDataset:
    return read_criteo(io.BytesIO(data), "clicks.tsv", tables, allowed)


def everything(dataset: CriteoDataset) -> Batch:
    return dataset.take(np.arange(dataset.rows))


def assert_same(one: Batch, other: Batch) -> None:
    assert np.array_equal(one.dense, other.dense)
    assert np.array_equal(one.ids, other.ids)
    assert np.array_equal(one.labels, other.labels)


def test_a_line_becomes_a_sample() -> None:
    integers = [0, 1, "", -2, 1000, 7, 7, 7, 7, 7, 7, 7, ""]
    batch = everything(read(line(1, integers) + b"\n" + line(0) + b"\n"))
    assert (batch.dense.dtype, batch.ids.dtype, batch.labels.dtype) == (np.float32, np.int64, np.float32)
    assert (batch.dense.shape, batch.ids.shape) == ((2, 13), (2, 26))
    assert batch.labels.tolist() == [1, 0]
    known = np.log1p(np.array([0, 1, 0, 0, 1000, 7, 7, 7, 7, 7, 7, 7, 0], np.float64)).astype(np.float32)
    assert np.array_equal(batch.dense[0], known), "missing and negative counts are 0"
    assert (batch.ids >= 0).all()
    assert (batch.ids < [table.rows for table in TABLES]).all()


def test_ids_follow_from_the_string_alone() -> None:
    one = everything(read(b"\n".join(line(categories=["x", text, *"y" * 24]) for text in ["", "ab", "", "é" * 300])))
    assert one.ids[0, 1] == one.ids[2, 1], "the empty string is a value like another"
    assert len(set(one.ids[:, 1].tolist())) == 3
    assert one.ids[:, 1].tolist() == [807, 408, 807, 889]


def test_quotes_and_escapes_are_characters_like_others() -> None:
    def ids(text: str) -> list[int]:
        return everything(read(line(categories=[text, *"y" * 25]))).ids[0].tolist()

    assert ids('"')[1:] == ids("\\")[1:] == ids("x")[1:]
    assert len({ids(text)[0] for text in ['"', '""', '"x"', "x", "\\", "#x", "NULL", " x"]}) == 8


def test_samples_are_taken_in_any_order() -> None:
    dataset = read(b"\n".join(line(k % 2, [k] * 13) for k in range(10)))
    batch = dataset.take(np.array([7, 2, 7]))
    assert_same(batch, Batch(*(getattr(everything(dataset), name)[[7, 2, 7]] for name in ("dense", "ids", "labels"))))
    assert len(dataset.take(np.array([], np.int64))) == 0


def test_fewer_tables_take_the_first_columns() -> None:
    data = line() + b"\n" + line(0, categories=["q"] * 26)
    assert np.array_equal(everything(read(data, tables=TABLES[:5])).ids, everything(read(data)).ids[:, :5])


@pytest.mark.parametrize("tables", [(), (*TABLES, TABLES[0]), (TableSpec("huge", 2**31),), (TableSpec("none", 0),)])
def test_tables_that_the_layout_cannot_feed_are_refused(tables: tuple[TableSpec, ...]) -> None:
    with pytest.raises(DataError, match=r"tables|rows"):
        read(line(), tables=tables)


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n"])
def test_line_endings_do_not_matter(ending: bytes) -> None:
    between = ending or b"\n"
    assert_same(everything(read(line(1) + between + line(0) + ending)), everything(read(line(1) + b"\n" + line(0))))


# What is wrong, where, and what the message says of it.
FAULTS = {
    "a column too few": (b"\t".join([b"1"] * 39), "it has 39 columns instead of 40"),
    "a column too many": (b"\t".join([b"1"] * 41), "it has 41 columns instead of 40"),
    "a label beyond 1": (line(label=2), "column 1 (label) is '2', not 0 or 1"),
    "no label": (line(label=""), "column 1 (label) is '', not 0 or 1"),
    "an empty line": (b"", "column 1 (label) is '', not 0 or 1"),
    "a word for a count": (line(integers=[1, 2, "x7", *[3] * 10]), "column 4 (integer 3) is 'x7', not an integer"),
    "a fraction": (line(integers=[*[3] * 12, "1.5"]), "column 14 (integer 13) is '1.5', not an integer or empty"),
}


@pytest.mark.parametrize(("bad", "fault"), FAULTS.values(), ids=FAULTS)
def test_a_bad_line_is_named(bad: bytes, fault: str) -> None:
    with pytest.raises(DataError) as caught:
        read(b"\n".join([line(), line(), bad, line()]))
    assert caught.value.reason == "BadData"
    assert caught.value.message.startswith(f"clicks.tsv, line 3: {fault}")
    assert "maxBadLines" in caught.value.remedy


@pytest.mark.parametrize(("bad", "fault"), FAULTS.values(), ids=FAULTS)
def test_bad_lines_up_to_the_limit_are_skipped(bad: bytes, fault: str) -> None:
    good = [line(0, [k] * 13) for k in range(3)]
    data = b"\n".join([bad, good[0], bad, good[1], good[2], bad]) + b"\n"
    assert_same(everything(read(data, allowed=3)), everything(read(b"\n".join(good))))
    with pytest.raises(DataError, match=r"line 6: (it has|column)") as caught:
        read(data, allowed=2)
    assert fault in caught.value.message


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["good", *FAULTS]), max_size=200), st.integers(0, 8), st.sampled_from([700, 2000, 10**6])
)
def test_the_line_named_is_the_first_beyond_the_limit_wherever_blocks_end(
    kinds: list[str], allowed: int, block_bytes: int
) -> None:
    data = b"".join((line() if kind == "good" else FAULTS[kind][0]) + b"\n" for kind in ["good", *kinds])
    bad = [number for number, kind in enumerate(kinds, start=2) if kind != "good"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(criteo_stream, "BLOCK_BYTES", block_bytes)
        if len(bad) <= allowed:
            assert read(data, allowed=allowed).rows == 1 + len(kinds) - len(bad)
        else:
            with pytest.raises(DataError) as caught:
                read(data, allowed=allowed)
            fault = FAULTS[kinds[bad[allowed] - 2]][1]
            assert caught.value.message.startswith(f"clicks.tsv, line {bad[allowed]}: {fault}")


def test_a_file_of_something_else_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criteo_stream, "BLOCK_BYTES", 2**16)
    stream = io.BytesIO(b"a\tb\n" * 2**20)
    with pytest.raises(DataError, match="line 4: it has 2 columns"):
        read_criteo(stream, "clicks.tsv", TABLES, 3)
    assert stream.tell() < 3 * 2**20


def test_blocks_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"\n".join(line(k % 2, [k] * 13, [f"{k * j:x}" for j in range(26)]) for k in range(500))
    whole = everything(read(data))
    monkeypatch.setattr(criteo_stream, "BLOCK_BYTES", 1000)
    assert_same(everything(read(data)), whole)


class Dribble(io.RawIOBase):
    """A stream that can't seek and gives a few bytes at a time, as a connection may."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._data.read(min(size, 7) if size > 0 else 7)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_streams_that_give_little_at_a_time_are_read_whole(pack: type[bytes]) -> None:
    data = b"\n".join(line(k % 2) for k in range(50))
    stream: BinaryIO = Dribble(pack(data))  # type: ignore[assignment]
    assert_same(everything(read_criteo(stream, "s3://b/k", TABLES, 0)), everything(read(data)))


def test_gzip_is_told_by_its_first_bytes_and_may_have_several_members() -> None:
    first, second = line(1) + b"\n", line(0) + b"\n"
    assert_same(everything(read(gzip.compress(first) + gzip.compress(second))), everything(read(first + second)))


def noise(rows: int) -> bytes:
    random = np.random.default_rng(1)
    return b"\n".join(line(0, categories=[f"{x:08x}" for x in random.integers(0, 2**32, 26)]) for _ in range(rows))


@pytest.mark.parametrize("kept", [3, 100, 0.5, -8, -1])
def test_a_truncated_gzip_file_is_an_error_however_it_ends(kept: float) -> None:
    packed = gzip.compress(noise(2000))
    cut = packed[: int(len(packed) * kept) if isinstance(kept, float) else kept]
    with pytest.raises(DataError, match=r"clicks.tsv cannot be read to its end: .+"):
        read(cut, allowed=10**6)


def test_a_damaged_gzip_file_is_an_error() -> None:
    packed = bytearray(gzip.compress(noise(200)))
    packed[-6] ^= 1  # The checksum.
    with pytest.raises(DataError, match="cannot be read to its end"):
        read(bytes(packed))


@pytest.mark.parametrize("data", [b"", gzip.compress(b"")])
def test_an_empty_file_is_an_error(data: bytes) -> None:
    with pytest.raises(DataError, match="mpty"):
        read(data)


def test_a_file_of_bad_lines_only_is_an_error_though_they_are_allowed() -> None:
    with pytest.raises(DataError, match="no usable line"):
        read(b"a\tb\n" * 10, allowed=10)


def test_a_line_longer_than_a_block_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criteo_stream, "BLOCK_BYTES", 1000)
    with pytest.raises(DataError, match="straddl"):
        read(line(categories=["x" * 5000] + [""] * 25))


def test_a_source_that_fails_is_no_bad_data() -> None:
    class Broken(io.RawIOBase):
        def read(self, _: int = -1) -> bytes:
            raise ConnectionResetError(104, "Connection reset by peer")

    stream: BinaryIO = Broken()  # type: ignore[assignment]
    with pytest.raises(ConnectionResetError):
        read_criteo(stream, "s3://b/k", TABLES, 0)


def test_memory_is_the_final_arrays_and_a_quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criteo_stream, "BLOCK_BYTES", 2**16)
    data = (noise(200) + b"\n") * 200
    tracemalloc.start()
    dataset = read(data)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    final = dataset.rows * (13 * 4 + 26 * 4 + 1)
    assert held < final * 1.1
    assert peak < final * 1.25 + 2**20, "a few blocks beside"
