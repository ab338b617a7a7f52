"""Errors of data name their file, row and column."""

from __future__ import annotations

import gzip
import io
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cpr_contract.model import TableSpec
from cpr_contract.spec import DataSpec
from cpr_trainer.data.dataset import Batch
from cpr_trainer.data.reader import BadRows
from cpr_trainer.errors import DataError
from cpr_trainer.store import Uris
from support.table_data import (
    COLUMNS,
    Click,
    as_table,
    as_text,
    assert_same,
    clicks,
    everything,
    read,
    spec,
    write,
)

CRITEO_TABLES = tuple(TableSpec(f"c{number}", 1000 + number) for number in range(26))
HEAD = "click,age,views,price,user,item"


def criteo(label: object = 1, counts: list[object] | None = None) -> bytes:
    columns = [label, *(counts or range(13)), *(f"{k:08x}" for k in range(26))]
    return "\t".join(map(str, columns)).encode()


# A bad line, and the text of its message.
ERRORS = {
    "a column too few": (b"\t".join([b"1"] * 39), "it has 39 columns instead of 40"),
    "a column too many": (b"\t".join([b"1"] * 41), "it has 41 columns instead of 40"),
    "a column too many, and no text": (
        b"\t".join([b"\xff"] * 41),
        "it has 41 columns instead of 40",
    ),
    "a label beyond 1": (criteo(2), "column 1 is '2', not 0 or 1"),
    "no label": (criteo(""), "column 1 is empty, not 0 or 1"),
    "an empty line": (b"", "column 1 is empty, not 0 or 1"),
    "a word for a count": (criteo(1, [1, 2, "x7", *[3] * 10]), "column 4 is 'x7', not a number or empty"),
    "no finite number": (criteo(1, [*[3] * 12, "1e999"]), "column 14 is '1e999', not a number or empty"),
    "bytes that are no text": (
        criteo(1).replace(b"\t5\t", b"\t\xff\t", 1),
        r"column 7 is '\\xff', not a number or empty",
    ),
}


def read_criteo(folder: Path, data: bytes, allowed: int = 0) -> Batch:
    (folder / "clicks.tsv").write_bytes(data)
    criteo_spec = DataSpec("Criteo", f"{folder}/clicks.tsv", 1, None, 8, 0, allowed)
    return everything(read(criteo_spec, CRITEO_TABLES))


@pytest.mark.parametrize(("bad", "error"), ERRORS.values(), ids=ERRORS)
def test_bad_lines_are_named_and_left_out_up_to_the_limit(tmp_path: Path, bad: bytes, error: str) -> None:
    with pytest.raises(DataError) as caught:
        read_criteo(tmp_path, b"\n".join([criteo(), criteo(), bad, criteo()]))
    assert caught.value.reason == "BadData"
    assert caught.value.message.startswith(f"{tmp_path}/clicks.tsv, line 3: {error}")
    assert "maxBadLines" in caught.value.remedy
    good = [criteo(0, [k] * 13) for k in range(3)]
    data = b"\n".join([bad, good[0], bad, good[1], good[2], bad]) + b"\n"
    assert_same(read_criteo(tmp_path, data, 3), read_criteo(tmp_path, b"\n".join(good)))
    with pytest.raises(DataError, match=r"line 6: (it has|column)") as caught:
        read_criteo(tmp_path, data, 2)
    assert error in caught.value.message


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(["good", *ERRORS]), max_size=200), st.integers(0, 8), st.sampled_from([700, 2000, 10**6])
)
def test_bad_lines_keep_their_place_wherever_blocks_end(
    tmp_path: Path, kinds: list[str], allowed: int, block_bytes: int
) -> None:
    data = b"".join((criteo() if kind == "good" else ERRORS[kind][0]) + b"\n" for kind in ["good", *kinds])
    bad = {number: ERRORS[kind][1] for number, kind in enumerate(kinds, start=2) if kind != "good"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cpr_trainer.data.text.BLOCK_BYTES", block_bytes)
        if len(bad) <= allowed:
            assert len(read_criteo(tmp_path, data, allowed)) == 1 + len(kinds) - len(bad)
        else:
            with pytest.raises(DataError) as caught:
                read_criteo(tmp_path, data, allowed)
            place, _, error = caught.value.message.partition(": ")
            number = int(place.rpartition(" ")[2])
            assert sorted(bad).index(number) >= allowed, "those before it are allowed"
            assert error.startswith(bad[number])
            if block_bytes == 10**6:
                assert number == sorted(bad)[allowed], "the first too many, if it is in this block"


def test_a_batch_leaves_bad_rows_out_and_keeps_the_order(tmp_path: Path) -> None:
    lines = as_text([Click(1, age=number) for number in range(10)], ",").splitlines()
    lines[4], lines[8] = b"1,word,0,0,u,7", b"1,2"
    (tmp_path / "a.csv").write_bytes(b"\n".join(lines))
    dataset = read(replace(spec("CSV", f"{tmp_path}/a.csv"), max_bad_lines=2))
    assert dataset.layout.rows == 10
    batch = dataset.take(np.array([9, 3, 7, 2, 3, 0]))
    assert np.expm1(batch.dense[:, 0]).round().tolist() == [9, 2, 0]


def test_rows_of_parquet_are_named(tmp_path: Path) -> None:
    table = as_table([Click(1), Click(0), Click(1, price=float("nan")), Click(1)])
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    with pytest.raises(DataError, match=r"a\.parquet, row 3: column price is nan, not a number or empty"):
        everything(read(spec("Parquet", f"{tmp_path}/a.parquet")))


@pytest.mark.parametrize(
    ("column", "values", "error"),
    [
        ("price", pa.array(["1", "2"]), "column price is string, not a number"),
        ("click", pa.array(["1", "2"]), "column click is string, not a number"),
        ("user", pa.array([1.5, 2.5]), "column user is double, not text or an integer"),
        ("user", pa.array([[1], [2, 3]]), "column user is list<.*int64>, not text or an integer"),
        ("item", pa.array([1, 2], pa.timestamp("ms")), r"column item is timestamp\[ms\], not text or an integer"),
    ],
    ids=["text for a number", "text for a label", "numbers with points", "lists", "times"],
)
def test_columns_of_parquet_with_other_types_are_refused(
    tmp_path: Path, column: str, values: pa.Array, error: str
) -> None:
    table = as_table([Click(1), Click(0)])
    place = table.column_names.index(column)
    pq.write_table(table.set_column(place, column, values), tmp_path / "a.parquet", store_schema=False)
    with pytest.raises(DataError, match=rf"a\.parquet: {error}"):
        read(spec("Parquet", f"{tmp_path}/a.parquet"))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_missing_column_is_named_with_the_present_ones(tmp_path: Path, ending: str) -> None:
    (tmp_path / "a.csv").write_bytes(as_text(clicks(3), ","))
    pq.write_table(as_table(clicks(3)), tmp_path / "a.parquet")
    data = replace(
        spec("CSV" if ending == "csv" else "Parquet", f"{tmp_path}/a.{ending}"),
        columns=replace(COLUMNS, numbers=("cost",)),
    )
    with pytest.raises(DataError, match=r"no columns 'cost'; its columns are click, age, views, price, user, item"):
        read(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{HEAD}\n1,1,1,1,u,7\n1,1,1,cheap,u,7\n", r"a\.csv, line 3: column price is 'cheap', not a number or empty"),
        (f"{HEAD},user\n1,1,1,1,u,7,v\n", "2 columns 'user'"),
        (f'{HEAD}\n1,1,1,1,"a\nb",7\n', r"line 2: it has 5 columns|without line breaks in quotes"),
        (f"{HEAD}\r1,1,1,1,u,7\r", r"lines that end in a carriage return alone.*tr '\\r' '\\n'"),
        (f"{HEAD}\n1,1,1,1,u,7\r0,1,1,1,u,7\r", "has 1 lines where 2 rows are read"),
    ],
    ids=["lines-with-the-header", "two-columns-of-a-name", "line-breaks-in-quotes", "carriage-returns", "mixed-ends"],
)
def test_malformed_csv_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_bytes(text.encode())
    with pytest.raises(DataError, match=message):
        everything(read(spec("CSV", f"{tmp_path}/a.csv")))


def test_a_line_longer_than_a_block_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpr_trainer.data.text.BLOCK_BYTES", 1000)
    with pytest.raises(DataError, match="a line of more than 1000 bytes"):
        read_criteo(tmp_path, criteo(counts=["1" * 5000] + [1] * 12))


@pytest.mark.parametrize("length", [3, 100, 0.5, -8, -1])
@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_truncated_file_is_an_error(tmp_path: Path, length: float, packing: str) -> None:
    text = as_text(clicks(2000), ",")
    packed = gzip.compress(text) if packing == "gzip" else bytes(pa.compress(text, "zstd", asbytes=True))
    (tmp_path / "a.csv").write_bytes(packed[: int(len(packed) * length) if isinstance(length, float) else length])
    with pytest.raises(DataError, match=r"a\.csv (cannot be read to its end: .+|has no columns)"):
        everything(read(replace(spec("CSV", f"{tmp_path}/a.csv"), max_bad_lines=10**6)))


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(as_text(clicks(200), ",")))
    packed[-6] ^= 1  # The checksum.
    (tmp_path / "a.csv").write_bytes(packed)
    with pytest.raises(DataError, match="cannot be read to its end"):
        read(spec("CSV", f"{tmp_path}/a.csv"))


@pytest.mark.parametrize("damage", ["cut", "text"])
def test_damaged_parquet_is_an_error(tmp_path: Path, damage: str) -> None:
    pq.write_table(as_table(clicks(50)), tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[:-100] if damage == "cut" else as_text(clicks(50), ","))
    with pytest.raises(DataError, match=r"a\.parquet cannot be read to its end"):
        read(spec("Parquet", f"{tmp_path}/a.parquet"))


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (f"{HEAD}\n".encode("utf-16"), "is text in UTF-16. Convert it to UTF-8"),
        (f"{HEAD}\n".encode("utf-16-be"), "is text in UTF-16"),
        (b"PK\x03\x04\x14\0", "is a zip archive"),
        (b"\xfd7zXZ\0", "is packed by xz"),
        (b"\x04\x22\x4d\x18", "is packed by lz4"),
        (b"ARROW1\0\0", "is an Arrow IPC"),
        (b"ORC\x08", "is an ORC file"),
        (b"Obj\x01", "is an Avro file"),
        (b'{"click": 1}\n', "is JSON"),
        (b"PAR1\x15", r"is Parquet. State data.format: Parquet"),
        (b"\xff\xff\xff\xff\x10", "is a stream of Arrow IPC"),
        (b"FEA1\0\0", "is a Feather file of version 1"),
        (b'[{"click": 1}]', "is an array of JSON. Write one object a line"),
        (b"\x3e\1" + bytes(6) + b"\x11\x22\x33\x44\n\xb9", "is a TFRecord file. Convert it to Parquet"),
        (b"part-0.csv".ljust(257, b"\0") + b"ustar", "is a tar archive. Unpack it"),
        (b"\xff\x06\0\0sNaPpY", "is packed by snappy"),
        (b"\x93NUMPY\1", "is an array of NumPy"),
        (b"\x89HDF\r\n\x1a\n", "is an HDF5 file"),
        (b"SQLite format 3\0", "is a database of SQLite"),
        (b"12345678DUCK\x40" + bytes(7), "is a database of DuckDB"),
        (b"\x80\x04\x95", "is a pickle"),
    ],
    ids=lambda each: each[3:20] if isinstance(each, str) else "",
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "packed"])
def test_file_of_another_format_is_named(
    tmp_path: Path, head: bytes, name: str, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "a").write_bytes(pack(head))
    own = {"is JSON": "JSONLines", "is an Arrow IPC": "Arrow", "is an ORC file": "ORC", "is Parquet": "Parquet"}
    for form in ("CSV", "Parquet", "JSONLines", "Arrow", "ORC"):
        if any(name.startswith(of) and form == reader for of, reader in own.items()):
            continue
        packed = pack is not bytes and form in {"Parquet", "Arrow", "ORC"}
        with pytest.raises(DataError, match="cannot be read to its end" if packed else name):
            read(spec(form, f"{tmp_path}/a"))


@pytest.mark.parametrize("name", ["PAR1", "ARROW1", "ORC", "FEA1", "PARENT", "Object", "7z", "PK"])
def test_name_of_a_column_is_no_format(tmp_path: Path, name: str) -> None:
    for delimiter, form in ((",", "CSV"), ("\t", "TSV")):
        (tmp_path / "a").write_text(
            delimiter.join([name, "DUCK", *HEAD.split(",")]) + "\n" + delimiter.join("11111117")
        )
        assert len(everything(read(spec(form, f"{tmp_path}/a")))) == 1


@pytest.mark.parametrize("ending", ["arrow", "orc", "jsonl", "parquet"])
def test_truncated_table_is_bad_data(tmp_path: Path, ending: str) -> None:
    data = write(clicks(200), tmp_path, ending)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=rf"part-000\.{ending}.* (cannot be read to its end|it is no JSON object)"):
        everything(read(data))


class OddError(Exception):
    """An error that no library documents."""


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("place", ["index", "fetch", "parse", "decode"])
def test_any_error_of_a_reader_is_bad_data_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, place: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OddError("a cell\nwith a second line")

    data = write(clicks(30), tmp_path, ending)
    targets = {
        "index-csv": "cpr_trainer.data.text.line_chunks",
        "index-parquet": "cpr_trainer.data.parquet.check_columns",
        "fetch-csv": "cpr_trainer.data.text.Text._read",
        "fetch-parquet": "cpr_trainer.data.parquet._OpenTable.read",
        "parse-csv": "pyarrow.csv.read_csv",
        "parse-parquet": "cpr_trainer.data.parquet.normalized",
        "decode-csv": "cpr_trainer.data.reader.decode",
        "decode-parquet": "cpr_trainer.data.reader.decode",
    }
    dataset = None if place == "index" else read(data)
    monkeypatch.setattr(targets[f"{place}-{ending}"], fail)
    with pytest.raises(DataError, match=rf"part-000\.{ending} cannot be read to its end: a cell\."):
        everything(read(data) if dataset is None else dataset)


@pytest.mark.parametrize("data", [b"", gzip.compress(b"", mtime=0), HEAD.encode(), HEAD.encode() + b"\n"])
def test_data_without_a_row_is_an_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(data)
    with pytest.raises(DataError, match=r"a\.csv has no row"):
        read(spec("CSV", f"{tmp_path}/a.csv"))


class Broken(io.BytesIO):
    """A file with a connection that breaks at each read."""

    def read(self, _: int | None = -1) -> bytes:
        raise ConnectionResetError(104, "Connection reset by peer")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_outage_of_the_source_is_no_data_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    data = write(clicks(3), tmp_path, ending)
    monkeypatch.setattr(Uris, "open", lambda *_: Broken(bytes(1000)))
    with pytest.raises(ConnectionResetError):
        read(data)


def test_memory_for_bad_rows_is_one_text_a_block() -> None:
    errors = {row: f"column price is 'x{row}', not a number or empty" for row in range(500)}
    named: list[int] = []

    def place(row: int) -> str:
        named.append(row)
        return f"a.csv, line {row}"

    bad = BadRows(100 * 500)
    tracemalloc.start()
    for block in range(100):
        bad.add(block, errors, place)
        bad.add(block, errors, place)  # read again after it left the cache
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 100 * 1000, "a text a block"
    assert len(named) == 200
    with pytest.raises(DataError, match=r"line 499: .* \(bad rows so far: 50001, allowed: 50000\)"):
        bad.add(7, errors | {500: "it has 2 columns"}, place)
