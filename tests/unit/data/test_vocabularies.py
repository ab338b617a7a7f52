"""Values that have a row each: read from text and Parquet, found in data of every format, and by who serves."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_contract.manifests import SavedModel, SavedTable, vocabulary_key
from cpr_contract.model import TableSpec
from cpr_contract.spec import ByNameSpec, TableSourceSpec
from cpr_trainer.checkpoint.format.documents import DamagedError, LayoutError
from cpr_trainer.checkpoint.format.records import read_vocabularies, vocabularies_of, write_vocabularies
from cpr_trainer.checkpoint.restore.vocabulary_check import check_vocabularies, with_vocabularies
from cpr_trainer.data.vocabularies import read_vocabulary
from cpr_trainer.errors import DataError
from cpr_trainer.store.folder import FolderStore
from cprjob_serving.hashes import Cells
from cprjob_serving.transform import EncodeError, Feature, Numeric, Table, Transform, ids_of
from cprjob_serving.vocabulary import Vocabulary
from support.plain_batches import single_ids
from support.table_data import FILES, TABLES, Click, everything, model_of, read, write

VALUES = Vocabulary.of(b"u1\nu2\nlonger than eight bytes\n")


def table(tmp_path: Path, text: bytes, **options: object) -> TableSpec:
    path = tmp_path / "values.txt"
    path.write_bytes(text)
    return replace(TABLES[0], ids="Vocabulary", vocabulary=str(path), **options)  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.sets(st.binary(min_size=1, max_size=40).filter(lambda each: b"\n" not in each)), st.lists(st.binary()))
def test_each_value_has_its_row_and_nothing_else_has_one(values: set[bytes], others: list[bytes]) -> None:
    ordered = list(values)
    vocabulary = Vocabulary.of(b"".join(each + b"\n" for each in ordered))
    asked = [*ordered[::-1], *others]
    expected = [ordered.index(each) + 1 if each in values else -1 for each in asked]
    assert vocabulary.rows(Cells.of(asked)).tolist() == expected
    assert Vocabulary.of(vocabulary.text).digest == vocabulary.digest


def test_values_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cells, "hashes", lambda self: self.lengths.astype(np.uint64) % np.uint64(2))
    texts = [b"%d" % number for number in range(30)] + [b"the same sixteen", b"the same sixteeN"]
    vocabulary = Vocabulary.of(b"".join(each + b"\n" for each in texts))
    assert vocabulary.rows(Cells.of([*texts, b"31"])).tolist() == [*range(1, 33), -1]
    with pytest.raises(ValueError, match="lines 1 and 4 are both 'a'"):
        Vocabulary.of(b"a\nb\nc\na\n")


@pytest.mark.parametrize("ending", ["csv", "tsv.zst", "parquet"])
def test_a_value_has_its_row_in_every_format(tmp_path: Path, ending: str) -> None:
    rows = [Click(1, user=user) for user in ("u2", "u1", "new", None)]
    data = write(rows, tmp_path / "data", ending)
    other = replace(TABLES[1], name="item")
    forgiving = table(tmp_path, b"u1\nu2\n", out_of_range="DefaultRow")
    assert single_ids(everything(read(data, (forgiving, other))))[:, 0].tolist() == [2, 1, 0, 0]
    with pytest.raises(DataError, match="column user is 'new', not a value of the vocabulary of table user"):
        everything(read(data, (table(tmp_path, b"u1\nu2\n"), other)))


def test_integers_are_values_by_their_digits(tmp_path: Path) -> None:
    pq.write_table(pa.table({"item": [70, 7]}), tmp_path / "items.parquet")
    data = write([Click(1, item=7), Click(1, item=70)], tmp_path / "data", "parquet")
    items = replace(TABLES[1], ids="Vocabulary", vocabulary=f"{tmp_path}/items.parquet")
    assert single_ids(everything(read(data, (TABLES[0], items))))[:, 1].tolist() == [2, 1]


def test_text_may_be_packed_and_have_other_ends_of_lines(tmp_path: Path) -> None:
    for text in (b"a\nb", b"\xef\xbb\xbfa\r\nb\r\n", gzip.compress(b"a\nb\n")):
        (tmp_path / "v").write_bytes(text)
        assert read_vocabulary(f"{tmp_path}/v", FILES, "field").text == b"a\nb\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"a\n\nb\n", "line 2 is empty"),
        (b"a\nb\na\n", "lines 1 and 3 are both 'a'"),
        (b"", "it has no value"),
        (gzip.compress(b""), "it has no value"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_refused(tmp_path: Path, text: bytes, told: str) -> None:
    (tmp_path / "v").write_bytes(text)
    with pytest.raises(DataError, match=told) as error:
        read_vocabulary(f"{tmp_path}/v", FILES, "spec.model.tables[0].vocabulary.uri")
    assert "spec.model.tables[0].vocabulary.uri" in error.value.remedy


@pytest.mark.parametrize("columns", [{"a": ["x"], "b": ["y"]}, {"a": [1.5]}, {"a": ["x", None]}, {"a": ["x\ny"]}])
def test_a_table_that_is_no_vocabulary_is_refused(tmp_path: Path, columns: dict[str, list[object]]) -> None:
    pq.write_table(pa.table(columns), tmp_path / "v")
    with pytest.raises(DataError, match="is no vocabulary"):
        read_vocabulary(f"{tmp_path}/v", FILES, "field")


def test_a_table_has_a_row_for_each_value_and_the_default_row(tmp_path: Path) -> None:
    data = write([Click(1, user="u1")], tmp_path / "data", "csv")
    read(data, (table(tmp_path, b"u1\nu2\n", rows=3), TABLES[1]))
    with pytest.raises(DataError, match=r"has 2 rows, and its vocabulary 2 values.*tables\[0\]\.rows to 3"):
        read(data, (table(tmp_path, b"u1\nu2\n", rows=2), TABLES[1]))


def test_the_first_copy_counts_and_is_verified(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    assert read_vocabularies(store, "job") is None
    write_vocabularies(store, "job", {"user": VALUES})
    write_vocabularies(store, "job", {"user": Vocabulary.of(b"changed\n")})
    found = vocabularies_of(store, "job/gen-0001/x", model_of([table(tmp_path, b"")]))
    assert found["user"].text == VALUES.text
    store.put(vocabulary_key("job", VALUES.digest), b"u2\nu1\n")
    with pytest.raises(DamagedError, match="its digest differs"):
        read_vocabularies(store, "job")
    with pytest.raises(DamagedError, match="is missing"):
        vocabularies_of(store, "other/x", model_of([table(tmp_path, b"")]))


def test_an_anchor_of_other_values_is_refused_and_one_of_fewer_is_taken(tmp_path: Path) -> None:
    saved = SavedModel(0, (SavedTable("user", 100, 4, "SGD", "Vocabulary"),), "SGD", ())
    saved = with_vocabularies(saved, {"user": VALUES})
    mine = table(tmp_path, b"")
    longer = Vocabulary.of(VALUES.text + b"new\n")
    check_vocabularies(saved, model_of([mine]), None, {"user": VALUES}, "key")
    check_vocabularies(saved, model_of([mine]), ByNameSpec(), {"user": longer}, "key")
    other, renamed = Vocabulary.of(b"u2\nu1\nlonger than eight bytes\n"), replace(mine, name="visitor")
    rules = ByNameSpec(map=(TableSourceSpec("visitor", "user"),))
    for model, by_name, found in (
        (model_of([mine]), None, {"user": other}),
        (model_of([renamed]), rules, {"visitor": Vocabulary.of(b"u1\nu2\n")}),
    ):
        with pytest.raises(LayoutError, match=r"spec\.model\.tables\[0\]\.vocabulary: table user of key"):
            check_vocabularies(saved, model, by_name, found, "key")


def test_who_serves_finds_the_same_rows() -> None:
    def rows(out_of_range: str, ids: list[object]) -> list[int]:
        place = Table("t", "t", 9, 4, "Vocabulary", 0, out_of_range, "vocabularies/t.txt")  # type: ignore[arg-type]
        transform = Transform(1, (Numeric("x", "Count"),), (place,), (Feature("t", "id", "t"),), ("y",))
        columns: dict[str, list[Any]] = {"x": [0] * len(ids), "id": ids}
        found: list[int] = ids_of(transform, transform.features[0], columns, {"t": VALUES}).rows.tolist()
        return found

    assert rows("DefaultRow", ["u2", "new", None, "longer than eight bytes"]) == [2, 0, 0, 3]
    with pytest.raises(EncodeError, match="column id, sample 1: 'new' has no row; give a value of vocabularies/t"):
        rows("Fail", ["u1", "new"])
