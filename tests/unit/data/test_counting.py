"""Vocabularies that are built of the data: what is counted, in which order values stand, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cpr_contract.model import FeatureSpec, ModelSpec, TableSpec
from cpr_trainer.data.open import FindVocabularies, open_dataset
from cpr_trainer.data.vocabularies import ValueCounts, Vocabularies, count_values
from cpr_trainer.errors import DataError
from cpr_trainer.trainer.interrupts import Terminated
from support import bag_data
from support.plain_batches import single_ids
from support.table_data import COLUMNS, FILES, FORMATS, TABLES, Click, clicks, everything, model_of, spec, write

BUILT = replace(TABLES[0], ids="Vocabulary", min_count=1, out_of_range="DefaultRow")


def built(data: Any, model: ModelSpec) -> dict[str, list[bytes]]:
    """Return the values of the vocabularies that opening the data builds, by their table."""
    found: Vocabularies = {}

    def keep(find: FindVocabularies) -> Vocabularies:
        found.update(find(lambda: None))
        return found

    open_dataset(data, model, FILES, vocabularies=keep)
    return {name: each.text.splitlines() for name, each in found.items()}


def by_frequency(values: Sequence[bytes], least: int) -> list[bytes]:
    counts = Counter(each for each in values if each)
    return [each for each in sorted(counts, key=lambda each: (-counts[each], each)) if counts[each] >= least]


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("least", [1, 5])
def test_values_stand_by_how_often_the_data_has_them(
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
def test_rows_that_are_held_out_are_not_counted(tmp_path: Path, ending: str) -> None:
    rows = [Click(1, user="old"), Click(1, user="older"), Click(1, user="older"), Click(1, user="new")]
    data = replace(write(rows, tmp_path / "data", ending), hold_out=0.25)
    model = model_of([BUILT, TABLES[1]])
    assert built(data, model) == {"user": [b"older", b"old"]}
    assert single_ids(everything(open_dataset(data, model, FILES)))[:, 0].tolist() == [2, 1, 1, 0]


def test_ragged_rows_move_no_border(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("click,user,item\n1,a,1\n1,b\n1,c,1\n1,d,1\n")
    columns = replace(COLUMNS, counts=(), numbers=())
    data = replace(spec("CSV", f"{tmp_path}/rows.csv"), columns=columns, hold_out=0.25, max_bad_lines=1)
    assert built(data, model_of([BUILT, TABLES[1]])) == {"user": [b"a", b"c"]}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_bags_are_counted_as_far_as_they_are_used_and_features_share_a_table(tmp_path: Path, ending: str) -> None:
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


def test_a_dictionary_counts_what_is_used_of_it() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([1, None, 1, 2]), pa.array(["no", "a", ""]))
    assert count_values(pa.chunked_array([column])).to_pydict() == {"value": [b"a"], "count": [2]}


@pytest.mark.parametrize(
    ("rows", "least", "told"),
    [
        (3, 1, r"has 3 rows, and its vocabulary 3 values.*rows to 4, or raise vocabulary\.build\.minCount there"),
        (9, 3, r"No value of table user stands 3 times in the data\. Lower spec\.model\.tables\[0\]"),
    ],
)
def test_a_vocabulary_that_fits_no_table_is_refused(tmp_path: Path, rows: int, least: int, told: str) -> None:
    data = write([Click(1, user=user) for user in ("a", "b", "c", "a")], tmp_path / "data", "csv")
    with pytest.raises(DataError, match=told):
        built(data, model_of([replace(BUILT, rows=rows, min_count=least), TABLES[1]]))


def test_only_so_many_different_values_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_pass_ends_when_the_trainer_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpr_trainer.data.text.BLOCK_BYTES", 700)
    data, turns = write(clicks(300), tmp_path / "data", "csv"), list[int]()

    def poll_interrupts() -> None:
        turns.append(1)
        if len(turns) == 3:
            raise Terminated

    with pytest.raises(Terminated):
        open_dataset(data, model_of([BUILT, TABLES[1]]), FILES, vocabularies=lambda find: find(poll_interrupts))
    assert len(turns) == 3
