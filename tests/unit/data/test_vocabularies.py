"""Vocabularies: read from text and Parquet or built of the data, looked up in every format and in serving."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_contract.manifests import SavedModel, SavedTable
from cpr_contract.model import FeatureSpec, ModelSpec, TableSpec
from cpr_contract.pinned_data import vocabulary_key
from cpr_contract.spec import ByNameSpec, TableSourceSpec
from cpr_trainer.checkpoint.format.documents import DamagedError, LayoutError
from cpr_trainer.checkpoint.format.records import read_vocabularies, vocabularies_of, write_vocabularies
from cpr_trainer.checkpoint.restore.by_name import check_vocabularies, with_vocabularies
from cpr_trainer.data.open import FindVocabularies, open_dataset
from cpr_trainer.data.vocabularies import ValueCounts, Vocabularies, count_values, read_vocabulary
from cpr_trainer.errors import DataError
from cpr_trainer.store.folder import FolderStore
from cpr_trainer.trainer.control import Terminated
from cprjob_serving.hashes import Cells
from cprjob_serving.transform import EncodeError, Feature, Numeric, Table, Transform, ids_of
from cprjob_serving.vocabulary import Vocabulary
from support import bag_data
from support.plain_batches import single_ids
from support.table_data import COLUMNS, FILES, FORMATS, TABLES, Click, clicks, everything, model_of, read, spec, write

# --- Files of values


VALUES = Vocabulary.of(b"u1\nu2\nlonger than eight bytes\n")


def table(tmp_path: Path, text: bytes, **options: object) -> TableSpec:
    path = tmp_path / "values.txt"
    path.write_bytes(text)
    return replace(TABLES[0], ids="Vocabulary", vocabulary=str(path), **options)  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.sets(st.binary(min_size=1, max_size=40).filter(lambda each: b"\n" not in each)), st.lists(st.binary()))
def test_only_values_of_the_vocabulary_have_rows(values: set[bytes], others: list[bytes]) -> None:
    ordered = list(values)
    vocabulary = Vocabulary.of(b"".join(each + b"\n" for each in ordered))
    texts = [*ordered[::-1], *others]
    expected = [ordered.index(each) + 1 if each in values else -1 for each in texts]
    assert vocabulary.rows(Cells.of(texts)).tolist() == expected
    assert Vocabulary.of(vocabulary.text).digest == vocabulary.digest


def test_values_of_one_hash_have_different_rows(monkeypatch: pytest.MonkeyPatch) -> None:
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
    with_default_row = table(tmp_path, b"u1\nu2\n", out_of_range="DefaultRow")
    assert single_ids(everything(read(data, (with_default_row, other))))[:, 0].tolist() == [2, 1, 0, 0]
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
    ("text", "message"),
    [
        (b"a\n\nb\n", "line 2 is empty"),
        (b"a\nb\na\n", "lines 1 and 3 are both 'a'"),
        (b"", "it has no value"),
        (gzip.compress(b"", mtime=0), "it has no value"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_refused(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "v").write_bytes(text)
    with pytest.raises(DataError, match=message) as error:
        read_vocabulary(f"{tmp_path}/v", FILES, "spec.model.tables[0].vocabulary.uri")
    assert "spec.model.tables[0].vocabulary.uri" in error.value.remedy


@pytest.mark.parametrize("columns", [{"a": ["x"], "b": ["y"]}, {"a": [1.5]}, {"a": ["x", None]}, {"a": ["x\ny"]}])
def test_a_table_that_is_no_vocabulary_is_refused(tmp_path: Path, columns: dict[str, list[object]]) -> None:
    pq.write_table(pa.table(columns), tmp_path / "v")
    with pytest.raises(DataError, match="is not a vocabulary"):
        read_vocabulary(f"{tmp_path}/v", FILES, "field")


def test_a_table_has_a_row_for_each_value_and_the_default_row(tmp_path: Path) -> None:
    data = write([Click(1, user="u1")], tmp_path / "data", "csv")
    read(data, (table(tmp_path, b"u1\nu2\n", rows=3), TABLES[1]))
    with pytest.raises(DataError, match=r"has 2 rows, and its vocabulary 2 values.*tables\[0\]\.rows to 3"):
        read(data, (table(tmp_path, b"u1\nu2\n", rows=2), TABLES[1]))


def test_first_stored_vocabulary_is_used_and_verified(tmp_path: Path) -> None:
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


def test_anchor_with_other_values_is_refused_and_with_fewer_is_restored(tmp_path: Path) -> None:
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


def test_serving_finds_the_same_rows() -> None:
    def rows(out_of_range: str, ids: list[object]) -> list[int]:
        place = Table("t", "t", 9, 4, "Vocabulary", 0, out_of_range, "vocabularies/t.txt")  # type: ignore[arg-type]
        transform = Transform(1, (Numeric("x", "Count"),), (place,), (Feature("t", "id", "t"),), ("y",))
        columns: dict[str, list[Any]] = {"x": [0] * len(ids), "id": ids}
        found: list[int] = ids_of(transform, transform.features[0], columns, {"t": VALUES}).rows.tolist()
        return found

    assert rows("DefaultRow", ["u2", "new", None, "longer than eight bytes"]) == [2, 0, 0, 3]
    with pytest.raises(EncodeError, match="column id, sample 1: 'new' has no row; give a value of vocabularies/t"):
        rows("Fail", ["u1", "new"])


# --- Vocabularies built of the data


BUILT = replace(TABLES[0], ids="Vocabulary", min_count=1, out_of_range="DefaultRow")


def built(data: Any, model: ModelSpec) -> dict[str, list[bytes]]:
    """Return the values of the vocabularies that opening the data builds, by their table."""
    found: Vocabularies = {}

    def build(find: FindVocabularies) -> Vocabularies:
        found.update(find(lambda: None))
        return found

    open_dataset(data, model, FILES, vocabularies=build)
    return {name: each.text.splitlines() for name, each in found.items()}


def by_frequency(values: Sequence[bytes], least: int) -> list[bytes]:
    counts = Counter(each for each in values if each)
    return [each for each in sorted(counts, key=lambda each: (-counts[each], each)) if counts[each] >= least]


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("least", [1, 5])
def test_built_vocabulary_is_sorted_by_frequency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, least: int
) -> None:
    monkeypatch.setattr("cpr_trainer.data.text.BLOCK_BYTES", 700)
    monkeypatch.setattr("cpr_trainer.data.vocabularies._MERGED_AT_ONCE", 20)
    rows = clicks(300)
    data = write(rows, tmp_path / "data", ending, files=3)
    items = replace(TABLES[1], rows=400, ids="Vocabulary", min_count=1)
    users, expected = replace(BUILT, min_count=least), by_frequency([(row.user or "").encode() for row in rows], least)
    found = built(data, model_of([users, items]))
    assert found["user"] == expected
    assert found["item"] == by_frequency([b"" if row.item is None else b"%d" % row.item for row in rows], 1)
    assert least == 1 or 0 < len(expected) < 50
    known = {value: row for row, value in enumerate(expected, 1)}
    ids = single_ids(everything(open_dataset(data, model_of([users, TABLES[1]]), FILES)))[:, 0]
    assert ids.tolist() == [known.get((row.user or "").encode(), 0) for row in rows]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_held_out_rows_are_not_counted(tmp_path: Path, ending: str) -> None:
    rows = [Click(1, user="old"), Click(1, user="older"), Click(1, user="older"), Click(1, user="new")]
    data = replace(write(rows, tmp_path / "data", ending), hold_out=0.25)
    model = model_of([BUILT, TABLES[1]])
    assert built(data, model) == {"user": [b"older", b"old"]}
    assert single_ids(everything(open_dataset(data, model, FILES)))[:, 0].tolist() == [2, 1, 1, 0]


def test_ragged_rows_do_not_move_the_held_out_border(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("click,user,item\n1,a,1\n1,b\n1,c,1\n1,d,1\n")
    columns = replace(COLUMNS, counts=(), numbers=())
    data = replace(spec("CSV", f"{tmp_path}/rows.csv"), columns=columns, hold_out=0.25, max_bad_lines=1)
    assert built(data, model_of([BUILT, TABLES[1]])) == {"user": [b"a", b"c"]}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_counts_cover_used_ids_of_bags_and_all_features_of_a_table(tmp_path: Path, ending: str) -> None:
    rows = [
        bag_data.BagClick(tags=("a", "b", "c"), page="p"),
        bag_data.BagClick(tags=("c", None, "b"), page="c"),
        bag_data.BagClick(tags=None, page=None),
    ]
    data = bag_data.write_bags(rows, tmp_path / "data", ending)
    features = (FeatureSpec("tags", "tags", "t", "Sum", 2), FeatureSpec("page", "page", "t"))
    table = TableSpec("t", 9, ids="Vocabulary", min_count=1, out_of_range="DefaultRow")
    assert data.columns is not None
    data = replace(data, columns=replace(data.columns, categories=()))
    model = replace(model_of([table]), features=features, numeric=1)
    assert built(data, model) == {"t": [b"c", b"b", b"p"]}


def test_counts_leave_unused_dictionary_values_out() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([1, None, 1, 2]), pa.array(["no", "a", ""]))
    assert count_values(pa.chunked_array([column])).to_pydict() == {"value": [b"a"], "count": [2]}


@pytest.mark.parametrize(
    ("rows", "least", "message"),
    [
        (3, 1, r"has 3 rows, and its vocabulary 3 values.*rows to 4, or raise vocabulary\.build\.minCount there"),
        (9, 3, r"No value of table user stands 3 times in the data\. Lower spec\.model\.tables\[0\]"),
    ],
)
def test_a_vocabulary_that_fits_no_table_is_refused(tmp_path: Path, rows: int, least: int, message: str) -> None:
    data = write([Click(1, user=user) for user in ("a", "b", "c", "a")], tmp_path / "data", "csv")
    with pytest.raises(DataError, match=message):
        built(data, model_of([replace(BUILT, rows=rows, min_count=least), TABLES[1]]))


def test_number_of_counted_values_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpr_trainer.data.vocabularies._MERGED_AT_ONCE", 10)
    counts = ValueCounts(replace(BUILT, rows=2, min_count=2), 0)

    def add(first: int) -> None:
        counts.add(count_values(pa.chunked_array([pa.array([str(first + each) for each in range(16)])])))

    for _ in range(3):
        add(0)
    add(16)
    with pytest.raises(DataError, match=r"has 2 rows, and the data more than 32 different.*tables\[0\] more rows"):
        add(32)


def test_a_value_that_is_no_line_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"click": [1, 1], "user": ["a", "b\nc"], "item": [1, 1]}), tmp_path / "rows.parquet")
    columns = replace(COLUMNS, counts=(), numbers=())
    data = replace(spec("Parquet", f"{tmp_path}/rows.parquet"), columns=columns)
    with pytest.raises(DataError, match="A value of table user has a line feed"):
        built(data, model_of([BUILT, TABLES[1]]))


def test_counting_ends_when_the_trainer_is_terminated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpr_trainer.data.text.BLOCK_BYTES", 700)
    data, polls = write(clicks(300), tmp_path / "data", "csv"), list[int]()

    def poll_interrupts() -> None:
        polls.append(1)
        if len(polls) == 3:
            raise Terminated

    with pytest.raises(Terminated):
        open_dataset(data, model_of([BUILT, TABLES[1]]), FILES, vocabularies=lambda find: find(poll_interrupts))
    assert len(polls) == 3
