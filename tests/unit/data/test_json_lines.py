"""Objects of JSON lines are the rows that a table has, whatever keys and types pyarrow finds in a block."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cpr_trainer.errors import DataError
from support.table_data import assert_same, everything, read, spec

PLAIN = '{"click": 1, "age": 1, "views": 1, "price": 1.5, "user": "u", "item": 7}\n'
PARQUET: dict[str, list[object]] = {"click": [1], "age": [1], "views": [1], "price": [1.5], "user": ["u"], "item": [7]}


def assert_reads(folder: Path, text: str | bytes, **columns: Sequence[object]) -> None:
    """Assert that objects are the rows of a table; columns that are not stated have the values of `PLAIN`."""
    (folder / "a.jsonl").write_bytes(text if isinstance(text, bytes) else text.encode())
    rows = len(next(iter(columns.values())))
    pq.write_table(
        pa.table(
            {name: cells * rows for name, cells in PARQUET.items()}
            | {name: list(cells) for name, cells in columns.items()}
        ),
        folder / "a.parquet",
    )
    objects = read(spec("JSONLines", f"{folder}/a.jsonl"))
    assert_same(everything(objects), everything(read(spec("Parquet", f"{folder}/a.parquet"))))


def test_texts_that_look_like_times_are_ids(tmp_path: Path) -> None:
    times = ["2026-01-01", "2026-01-01T00:00:00Z", "2026-01-02"]
    text = "".join(PLAIN.replace('"u"', f'"{time}"') for time in times)
    assert_reads(tmp_path, text, user=times)


def test_keys_may_be_absent_and_in_any_order(tmp_path: Path) -> None:
    text = PLAIN + '{"item": 8, "other": {"x": [1]}, "click": 0}\r\n{"click": 0, "price": null, "user": "\\u00e9"}'
    nones = {name: [1, None, None] for name in ("age", "views")}
    assert_reads(
        tmp_path, text, click=[1, 0, 0], price=[1.5, None, None], user=["u", None, "\u00e9"], item=[7, 8, None], **nones
    )


@pytest.mark.parametrize("lines", [1, 2])
def test_types_may_differ_between_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int) -> None:
    """A block of two lines holds a text that is no time beside one that is; a block of one line has no text at all."""
    monkeypatch.setattr("cpr_trainer.data.text.BLOCK_BYTES", lines * len(PLAIN))
    users = ["u", "2026-01-01", None, "v"]
    cells = ["null" if user is None else f'"{user}"' for user in users]
    assert_reads(tmp_path, "".join(PLAIN.replace('"u"', cell) for cell in cells), user=users)


def test_files_may_be_packed_and_begin_with_a_mark(tmp_path: Path) -> None:
    assert_reads(tmp_path, gzip.compress(("\ufeff" + PLAIN).encode()), user=["u"])


@pytest.mark.parametrize("bad", ['{"click": 1', "", "[1]", "7", "{} {}"])
def test_line_that_is_no_object_is_a_bad_row(tmp_path: Path, bad: str) -> None:
    (tmp_path / "a.jsonl").write_text(f"{PLAIN}{bad}\n{PLAIN}")
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: it is no JSON object"):
        everything(read(spec("JSONLines", f"{tmp_path}/a.jsonl")))
    allowed = replace(spec("JSONLines", f"{tmp_path}/a.jsonl"), max_bad_lines=1)
    assert len(everything(read(allowed))) == 2


def test_key_that_no_object_has_is_refused_and_one_of_another_file_is_not(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"click": 1, "age": 1, "views": 1, "price": 1.5, "user": "u"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl has no columns 'item'"):
        read(spec("JSONLines", f"{tmp_path}/"))
    (tmp_path / "b.jsonl").write_text(PLAIN)
    assert len(everything(read(spec("JSONLines", f"{tmp_path}/")))) == 2


def test_column_of_another_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(PLAIN.replace("1.5", '"cheap"'))
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: column price is string, not a number"):
        everything(read(spec("JSONLines", f"{tmp_path}/")))
