"""The same rows are the same samples in every format."""

from __future__ import annotations

import base64
import bz2
import gzip
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
from cpr_contract.spec import ColumnsSpec
from cpr_trainer.data.dataset import Batch
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.errors import DataError
from support.plain_batches import single_ids
from support.table_data import (
    FORMATS,
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

texts = st.text(st.characters(codec="utf-8", exclude_characters='\r\n\t",\0', exclude_categories=["Cs"]), max_size=12)
absent = st.none()
rows_of = st.lists(
    st.builds(
        Click,
        click=st.integers(0, 1),
        age=absent | st.integers(-(2**53), 2**53),
        views=absent | st.integers(0, 9),
        price=absent | st.floats(allow_nan=False, allow_infinity=False, width=32),
        user=absent | texts,
        item=absent | st.integers(-(2**63), 2**63 - 1),
    ),
    min_size=1,
    max_size=30,
)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=rows_of, files=st.integers(1, 3))
def test_all_formats_give_the_same_batches(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Click], files: int
) -> None:
    folder = tmp_path_factory.mktemp("formats")
    sets = [read(write(rows, folder / ending, ending, files=files)) for ending in FORMATS]
    first = everything(sets[0])
    assert len(first) == len(rows)
    for dataset in sets[1:]:
        assert_same(everything(dataset), first)
        order = BatchOrder.of(replace(spec("CSV", "x"), batch_size=7), dataset.layout)
        for step in range(1, order.steps + 1):
            assert_same(dataset.take(order.batch_indices(step)), sets[0].take(order.batch_indices(step)))


def test_a_row_becomes_a_sample(tmp_path: Path) -> None:
    rows = [Click(1, age=9, views=None, price=-2.5, user="é", item=None), Click(0, age=-2, views=0, price=None)]
    batch = everything(read(write(rows, tmp_path, "csv")))
    ids = single_ids(batch)
    assert (batch.dense.dtype, ids.dtype, batch.labels.dtype) == (np.float32, np.int64, np.float32)
    assert (batch.dense.shape, ids.shape) == ((2, 13), (2, 2))
    assert batch.labels.tolist() == [1, 0]
    assert batch.dense[:, :3].tolist() == [[np.float32(np.log1p(9.0)), 0, -2.5], [0, 0, 0]]
    assert (batch.dense[:, 3:] == 0).all(), "features that the data does not have"
    assert (ids >= 0).all()
    assert (ids < [100, 50]).all()


def test_ids_follow_from_the_text_alone(tmp_path: Path) -> None:
    # Saved models stand on them.
    cells = ["", "ab", None, "é" * 300, '"', "NULL"]
    tables = TableSpec("user", 1001), TableSpec("item", 9)
    batch = everything(read(write([Click(1, user=cell) for cell in cells], tmp_path, "tsv"), tables))
    ids = single_ids(batch)[:, 0].tolist()
    assert ids[:4] == [807, 408, 807, 889]
    assert len(set(ids)) == 5, "no text stands for an absent one"


def test_quotes_are_the_marks_of_csv_and_characters_of_tsv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('click,age,views,price,user,item\n1,1,1,1,"a, ""b""",7\n')
    (tmp_path / "a.parquet").touch()
    pq.write_table(as_table([Click(1, 1, 1, 1.0, 'a, "b"', 7)]), tmp_path / "a.parquet")
    parquet = everything(read(spec("Parquet", f"{tmp_path}/a.parquet")))
    assert_same(everything(read(spec("CSV", f"{tmp_path}/a.csv"))), parquet)
    (tmp_path / "a.tsv").write_text('click\tage\tviews\tprice\tuser\titem\n1\t1\t1\t1\ta, "b"\t7\n')
    assert_same(everything(read(spec("TSV", f"{tmp_path}/a.tsv"))), parquet)


def test_columns_go_by_their_numbers_without_a_header(tmp_path: Path) -> None:
    rows = clicks(50)
    (tmp_path / "plain.csv").write_bytes(as_text(rows, ",", header=False))
    numbered = replace(
        spec("CSV", f"{tmp_path}/plain.csv"), header=False, columns=ColumnsSpec(("1",), ("2", "3"), ("4",), ("5", "6"))
    )
    assert_same(everything(read(numbered)), everything(read(write(rows, tmp_path / "named", "csv"))))


def test_each_file_has_its_own_order_of_columns(tmp_path: Path) -> None:
    rows = clicks(40)
    pq.write_table(as_table(rows[:20]), tmp_path / "a.parquet")
    pq.write_table(
        as_table(rows[20:]).select(["item", "user", "price", "views", "age", "click"]), tmp_path / "b.parquet"
    )
    parquet = everything(read(spec("Parquet", f"{tmp_path}/*")))
    assert_same(parquet, everything(read(write(rows, tmp_path / "c", "csv"))))


@pytest.mark.parametrize(
    "kind",
    [
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.dictionary(pa.int16(), pa.string()),
        pa.string_view(),
        pa.binary_view(),
    ],
    ids=str,
)
@pytest.mark.parametrize("encoding", [None, "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_texts_of_parquet_are_texts(tmp_path: Path, kind: pa.DataType, encoding: str | None) -> None:
    rows = clicks(40)
    table = as_table(rows)
    table = table.set_column(4, "user", table["user"].cast(kind))
    encodings = None if encoding is None else {"user": encoding}
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=encoding is None, column_encoding=encodings)
    parquet = everything(read(spec("Parquet", f"{tmp_path}/*")))
    assert_same(parquet, everything(read(write(rows, tmp_path / "c", "csv"))))


def test_column_of_nulls_is_one_without_values(tmp_path: Path) -> None:
    rows = clicks(20)
    for path, nulls in (("a.parquet", ()), ("b.parquet", ("age", "price", "user", "item"))):
        table = as_table(rows)
        for name in nulls:
            table = table.set_column(table.column_names.index(name), name, pa.nulls(20))
        pq.write_table(table, tmp_path / path)
    absent = [replace(row, age=None, price=None, user=None, item=None) for row in rows]
    assert_same(
        everything(read(spec("Parquet", f"{tmp_path}/*"))),
        everything(read(write([*rows, *absent], tmp_path / "c", "csv"))),
    )


def test_unused_column_of_an_unsupported_type_is_ignored(tmp_path: Path) -> None:
    """Integers of 128 bits, as Polars writes them: pyarrow opens no such file for any columns."""
    path, rows = tmp_path / "a.parquet", clicks(20)
    pq.write_table(as_table(rows).append_column("wide", pa.array(range(20), pa.int64())), path)
    noted = pq.read_metadata(path).metadata[b"ARROW:schema"]
    wide = base64.b64decode(noted).replace(b"\x40\0\0\0", b"\x80\0\0\0")
    path.write_bytes(path.read_bytes().replace(noted, base64.b64encode(wide)))
    with pytest.raises(pa.ArrowNotImplementedError):
        pq.ParquetFile(path)
    assert_same(everything(read(spec("Parquet", f"{path}"))), everything(read(write(rows, tmp_path / "c", "csv"))))


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_line_endings_do_not_matter(tmp_path: Path, ending: str, *, last: bool) -> None:
    rows = clicks(20)
    text = as_text(rows, ",").decode().replace("\n", ending)
    (tmp_path / "a.csv").write_text(text if last else text.removesuffix(ending), newline="")
    assert_same(
        everything(read(spec("CSV", f"{tmp_path}/a.csv"))), everything(read(write(rows, tmp_path / "c", "csv")))
    )


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv.zst", "jsonl"])
def test_blocks_join_without_a_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    rows = clicks(500)
    whole = everything(read(write(rows, tmp_path, ending)))
    monkeypatch.setattr("cpr_trainer.data.text.BLOCK_BYTES", 1000)
    dataset = read(spec(FORMATS[ending], f"{tmp_path}/"))
    assert dataset.layout.blocks > 10
    assert_same(everything(dataset), whole)
    shuffled = np.random.default_rng(3).permutation(500)
    again = dataset.take(shuffled)
    assert_same(again, Batch(whole.dense[shuffled], single_ids(whole)[shuffled], whole.labels[shuffled]))


def zstd(text: bytes) -> bytes:
    return bytes(pa.compress(text, "zstd", asbytes=True))


@pytest.mark.parametrize(
    ("head", "pack"), [(b"", gzip.compress), (b"", zstd), (b"", bz2.compress), (b"\x50\x2a\x4d\x18\3\0\0\0abc", zstd)]
)
def test_packed_text_may_have_several_members_and_skippable_frames(
    tmp_path: Path, head: bytes, pack: Callable[[bytes], bytes]
) -> None:
    rows = clicks(20)
    text = as_text(rows, ",")
    (tmp_path / "a.csv").write_bytes(head + pack(text[:100]) + pack(text[100:]))
    known = everything(read(write(rows, tmp_path / "c", "csv")))
    assert_same(everything(read(spec("CSV", f"{tmp_path}/a.csv"))), known)


def test_empty_files_among_others_do_not_matter(tmp_path: Path) -> None:
    rows = clicks(20)
    data = write(rows, tmp_path, "csv", files=2)
    (tmp_path / "part-000a.csv").write_bytes(as_text([], ","))
    (tmp_path / "part-000b.csv").touch()
    assert everything(read(data)).labels.tolist() == [row.click for row in rows]


@pytest.mark.parametrize("tables", [(), (TableSpec("a", 5),), (TableSpec("a", 2**31), TableSpec("b", 5))])
def test_tables_that_the_columns_cannot_feed_are_refused(tmp_path: Path, tables: tuple[TableSpec, ...]) -> None:
    with pytest.raises(DataError, match=r"tables|rows"):
        read(write(clicks(3), tmp_path, "csv"), tables)


@pytest.mark.parametrize("ending", ["csv.gz", "tsv.zst"])
def test_packed_file_is_read_again_from_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    monkeypatch.setattr("cpr_trainer.data.text.BLOCK_BYTES", 2000)
    dataset = read(replace(write(clicks(400), tmp_path, ending), shuffle_rows=1))
    assert dataset.layout.blocks > 6, "more than the cache holds"
    first = everything(dataset)
    for _ in range(3):
        assert_same(everything(dataset), first)
