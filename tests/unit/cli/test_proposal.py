"""The decisions of `cprjob init` over the statistics of columns: label, uses, tables, held-out rows, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from cpr_contract.requests import ColumnStats, DataStats
from cpr_operator.api import yaml_text
from cpr_operator.api.validate import parse_document
from cpr_operator.cli.command_errors import DocumentError, OptionError
from cpr_operator.cli.proposal.columns import separator_of, uses_of
from cpr_operator.cli.proposal.commented import Block, Value, plain, write
from cpr_operator.cli.proposal.label import choose_label
from cpr_operator.cli.proposal.manifest import Target, propose
from cpr_operator.cli.proposal.tables import tables_of
from cpr_operator.cli.proposal.training import batch_size, epochs, hold_out

ROWS = 10_000
TARGET = Target("job", "/data/clicks.csv", "image", 16 << 30)


def column(
    name: str, kind: str = "integer", low: float | None = None, high: float | None = None, **more: Any
) -> ColumnStats:
    """Return a column; of integers all numbers from `low` to `high` occur."""
    numeric = kind not in {"text", "bool"} and low is not None and high is not None
    found: dict[str, Any] = {
        "distinct": int(high - low) + 1 if numeric and high is not None and low is not None else 50
    }
    found |= {"repeated": found["distinct"], "missing": 0, "whole": numeric} | more
    return ColumnStats(name=name, kind=kind, lowest=low, highest=high, feeds="", **found)


def valued(name: str, *values: str, kind: str = "text", **more: Any) -> ColumnStats:
    """Return a column with these values, in as many rows each."""
    numbers = [float(each) for each in values] if kind not in {"text", "bool"} else []
    low, high = (min(numbers), max(numbers)) if numbers else (None, None)
    listed = tuple((each, 10) for each in values)
    return column(name, kind, low, high, values=listed, **{"distinct": len(values)} | more)


def stats(*columns: ColumnStats, form: str = "CSV", rows: int = ROWS, **more: Any) -> DataStats:
    return DataStats(form, True, 1, rows, 0, (), columns, None, **more)  # noqa: FBT003


CLICK = valued("click", "0", "1", kind="integer")
USER = column("user", low=1, high=500)


@pytest.mark.parametrize(
    ("columns", "label", "positive"),
    [
        ((CLICK, valued("mobile", "0", "1", kind="integer")), "click", ()),
        ((valued("label", "0.0", "1.0", kind="double"), CLICK), "label", ()),
        ((valued("isClicked", "true", "false", kind="bool"),), "isClicked", ()),
        ((valued("mobile", "0", "1", kind="integer"), USER), "mobile", ()),
        ((valued("target", "no", "Yes"), USER), "target", ("Yes",)),
        ((valued("y", "-1", "1", kind="integer"), USER), "y", ("1",)),
        ((valued("rating", "1", "2", "3", "4", "5", kind="integer"), USER), "rating", ("4", "5")),
        ((valued("stars", "0.5", "4.0", "5.0", kind="number", whole=False), USER), "stars", ("4.0", "5.0")),
        ((valued("rating", "8", "10", "1", "7", kind="integer"), CLICK), "click", ()),
    ],
)
def test_label_follows_from_name_and_values(
    columns: Sequence[ColumnStats], label: str, positive: tuple[str, ...]
) -> None:
    found = choose_label(columns, None)
    assert (found.column, found.positive) == (label, positive)


@pytest.mark.parametrize(
    ("columns", "option", "message"),
    [
        (
            (CLICK, valued("converted", "0", "1", kind="integer")),
            None,
            "columns click, converted may each be the label",
        ),
        ((valued("a", "0", "1", kind="integer"), valued("b", "0", "1", kind="integer")), None, "columns a, b may each"),
        (
            (USER, valued("action", "buy", "pv", "cart")),
            None,
            r"few values are action \(its values are buy, cart, pv\)",
        ),
        ((column("y", low=0, high=900),), None, "column y cannot be the label as it is: it has 901 values"),
        ((CLICK,), "clicks", "there is no such column; the columns are click"),
        ((valued("action", "buy", "pv", "cart"),), "action", "column action cannot be the label as it is"),
        ((valued("action", "buy", "pv", "cart"),), "action=sell", "no cell of action is sell"),
        ((valued("action", "buy", "pv"),), "action=buy,pv", "column action cannot be the label as it is"),
        ((valued("rating", "0.5", "4.5", "3", kind="double", whole=False),), None, "column rating cannot be the label"),
    ],
)
def test_ambiguous_label_is_refused_with_candidates(
    columns: Sequence[ColumnStats], option: str | None, message: str
) -> None:
    with pytest.raises(OptionError, match=message) as error:
        choose_label(columns, option)
    assert "--label" in str(error.value)


def test_option_names_the_values_of_one() -> None:
    found = choose_label((valued("action", "buy", "pv", "cart"), CLICK), "action=buy,cart")
    assert (found.column, found.positive, found.negative) == ("action", ("buy", "cart"), ("pv",))
    named = valued("a=b", "0", "1", kind="integer")
    assert choose_label((named,), "a=b").column == "a=b"


@pytest.mark.parametrize(
    ("found", "role", "reason"),
    [
        (column("", low=0, high=9), "Unused", "cannot state its name"),
        (column("payload", "struct<a: int64>", distinct=None), "Unused", "neither a value nor a list"),
        (column("blank", "empty", distinct=0, missing=ROWS), "Unused", "it is empty"),
        (valued("C1", "1005", kind="integer"), "Unused", "'1005' in every row"),
        (valued("bought", "0", "1", kind="integer"), "Unused", "an outcome"),
        (column("stars", low=1, high=5), "Unused", "an outcome"),
        (column("id", low=10**18, high=10**18 + ROWS - 1), "Unused", "differs in nearly every row"),
        (column("uuid", "text", distinct=ROWS - 3), "Unused", "differs in nearly every row"),
        (column("when", "timestamp[us]", distinct=900), "Unused", "times of the past"),
        (column("timestamp", low=0, high=900), "Unused", "times of the past"),
        (column("seen", low=1_500_000_000, high=1_500_009_000, distinct=900), "Unused", "times of the past"),
        (column("seen", low=1.5e12, high=1.6e12, distinct=900), "Unused", "times of the past"),
        (valued("day", "2026-01-02", "2026-01-03"), "Unused", "times of the past"),
        (column("hour", low=14102100, high=14103023, distinct=240), "Unused", "times of the past"),
        (column("hour", low=0, high=23), "Ids", "parts of a day"),
        (column("watch_time", low=0, high=7200), "Ids", "whole numbers"),
        (column("tags", "list of text", bag_mean=2.5, bag_most=9), "Bag", "2.5 ids a row, at most 9"),
        (column("vector", "list of float", bag_mean=8.0, bag_most=8), "Unused", "no bag of ids"),
        (column("sample_weight", "number", 0.1, 3, whole=False), "Weight", "by its name"),
        (column("sample_weight", "number", 0.1, 3, whole=False, missing=2), "Unused", "named as a weight"),
        (column("price", "number", 0.5, 19.5, whole=False), "Number", "fractions from 0.5 to 19.5"),
        (column("price", "double", 0.5, 1e6, whole=False), "Count", "as log"),
        (column("price", "double", 0.5, 1e6, whole=False, finite=False), "Unused", "NaN or infinite"),
        (column("visits", low=0, high=50), "Count", "a quantity, by its name"),
        (column("user_count", low=0, high=9), "Number", "a quantity, by its name"),
        (column("delta", low=-40, high=15), "Number", "negative numbers"),
        (column("mobile", "bool"), "Number", "booleans"),
        (column("C20", low=-1, high=200), "Ids", "whole numbers"),
        (column("user_id", "double", 1, 200), "Ids", "ids, by its name"),
        (column("site", "text"), "Ids", "text"),
        (column("site", "int64 or text"), "Ids", "int64 or text"),
        (column("blob", "fixed_size_binary[8]"), "Unused", "neither a number nor an id"),
    ],
    ids=lambda value: value.name if isinstance(value, ColumnStats) else "",
)
def test_use_of_a_column_has_its_reason(found: ColumnStats, role: str, reason: str) -> None:
    (use,) = uses_of(stats(CLICK, found), "click")
    assert (use.role, reason in use.reason) == (role, True), use


def test_several_weights_are_left_out() -> None:
    weights = [column(name, "number", 0, 1, whole=False) for name in ("weight", "sample_weight")]
    assert {use.role for use in uses_of(stats(CLICK, *weights), "click")} == {"Unused"}


def test_most_frequent_separator_is_that_of_bags() -> None:
    bags = [valued(name, "a|b", "c", "a|c") for name in ("genres", "tags")]
    data = stats(CLICK, *bags, valued("codes", "x;y", "z;y"), valued("site", "p", "q|r", "s", "t"))
    assert separator_of(data) == ("|", ("genres", "tags"))
    assert separator_of(replace(data, format="Parquet")) is None
    assert separator_of(stats(CLICK, USER)) is None


@pytest.mark.parametrize(
    ("found", "fields"),
    [
        (column("a", low=0, high=99), {"rows": 100, "ids": "RowNumber"}),
        (column("a", low=1, high=99), {"rows": 100, "ids": "RowNumber", "outOfRange": "DefaultRow"}),
        (column("a", low=0, high=99, missing=1), {"rows": 100, "ids": "RowNumber", "outOfRange": "DefaultRow"}),
        (column("a", "double", 0, 99, finite=False), {"rows": 100, "ids": "RowNumber", "outOfRange": "DefaultRow"}),
        (column("a", low=0, high=9999, distinct=99), {"rows": 100, "ids": "Vocabulary"}),
        (column("a", low=-1, high=98), {"rows": 101, "ids": "Vocabulary"}),
        (column("a", "text", distinct=4095), {"rows": 4096, "ids": "Vocabulary"}),
        (column("a", "text", distinct=9000, repeated=8000), {"rows": 9900, "ids": "Vocabulary"}),
        (column("a", "text", distinct=20_000, repeated=9_000), {"rows": 24576, "ids": "Dynamic"}),
        (column("a", "text", distinct=1_500_000, repeated=1_500_000), {"rows": 1_667_072, "ids": "Dynamic"}),
        (
            column("a", "list of int64", 0, 99, bag_mean=2.0, bag_most=3, missing=5),
            {"rows": 100, "ids": "RowNumber", "pooling": "Mean"},
        ),
    ],
)
def test_table_follows_the_ids(found: ColumnStats, fields: dict[str, Any]) -> None:
    data = stats(CLICK, found, rows=10**7)
    (table,) = tables_of(uses_of(data, "click"), data)
    extra = {"vocabulary", "eviction"} & {*table.fields}
    assert {name: value for name, value in table.fields.items() if name not in extra} == {"name": "a"} | fields


def test_ids_of_a_sample_get_rows_as_they_come() -> None:
    """The 100 ids that were read once may stand for ten times as many."""
    data = stats(CLICK, column("a", low=0, high=4099, repeated=4000), rows=10**6, read=10**5)
    (table,) = tables_of(uses_of(data, "click"), data)
    assert (table.fields["ids"], table.fields["rows"]) == ("Dynamic", 8192)


def test_names_of_tables_are_valid_and_unique() -> None:
    data = stats(CLICK, *(column(name, "text") for name in ("A b", "a-b", "7", "é", "x" * 80, "x" * 90)))
    names = [table.fields["name"] for table in tables_of(uses_of(data, "click"), data)]
    assert names[:4] == ["a-b", "a-b-2", "c7", "c"]
    assert len({*names}) == len(names)
    assert max(map(len, names)) <= 63


@pytest.mark.parametrize(
    ("columns", "rows", "portion"),
    [
        ((CLICK, USER), ROWS, 0.1),
        ((CLICK, USER), 100, 0),
        ((replace(CLICK, ordered=True), USER), ROWS, 0),
        ((CLICK, replace(USER, ordered=True)), ROWS, 0),
        ((CLICK, USER, replace(column("timestamp", low=0, high=9000), ordered=True)), ROWS, 0.1),
    ],
)
def test_last_rows_are_held_out_if_they_are_like_the_others(
    columns: Sequence[ColumnStats], rows: int, portion: float
) -> None:
    data = stats(*columns, rows=rows)
    ids = [use for use in uses_of(data, "click") if use.role == "Ids"]
    assert hold_out(data, choose_label(columns, None), ids).value == portion


def test_batch_and_epochs_follow_the_number_of_rows() -> None:
    assert [batch_size(rows).value for rows in (1, 100_000, 400_000, 10**9)] == [128, 128, 512, 2048]
    assert [epochs(rows, evaluated=True).value for rows in (10**5, 10**6, 10**7)] == [3, 2, 1]
    assert epochs(10**5, evaluated=False).value == 1


@pytest.mark.parametrize(("memory", "dim"), [(64 << 30, 16), (7 << 29, 8)])
def test_vectors_are_as_wide_as_memory_allows(memory: int, dim: int) -> None:
    data = stats(CLICK, column("user", low=0, high=2**24), rows=10**8)
    spec = parse_document(plain(propose(data, replace(TARGET, memory_bytes=memory), None, None).manifest))
    assert spec.model.embedding_dim == dim


def test_tables_that_do_not_fit_become_dynamic() -> None:
    data = stats(CLICK, column("user", low=0, high=2**30), column("site", "text"), rows=10**10)
    spec = parse_document(plain(propose(data, TARGET, None, None).manifest))
    assert [(table.ids, table.rows) for table in spec.model.tables] == [("Dynamic", 2**24), ("Vocabulary", 51)]
    with pytest.raises(DocumentError, match="of the 512 MiB of this machine"):
        propose(data, replace(TARGET, memory_bytes=512 << 20), None, None)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ((CLICK,), "there is one column, click"),
        ((CLICK, column("price", "double", 0, 1, whole=False)), "no column has ids"),
    ],
)
def test_data_without_ids_is_refused(columns: Sequence[ColumnStats], message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        propose(stats(*columns), TARGET, None, None)


def test_text_of_digits_is_a_number_in_text_formats_alone() -> None:
    """Readers of Parquet refuse text as a number, and as a label without values."""
    columns = (CLICK, column("price", "number", 0, 9, whole=False), USER)
    for form, label_values, numeric in (("CSV", 0, 1), ("Parquet", 1, 0)):
        spec = parse_document(plain(propose(stats(*columns, form=form), TARGET, None, None).manifest))
        assert spec.data.columns is not None
        assert (len(spec.data.columns.label_values), spec.model.numeric) == (label_values, numeric)


def test_rows_without_label_may_be_left_out_in_each_pass() -> None:
    data = stats(replace(CLICK, missing=7), USER)
    spec = parse_document(plain(propose(replace(data, bad=2), TARGET, None, None).manifest))
    assert spec.data.max_bad_lines == 3 * (7 + 2)


def test_written_manifest_reads_as_its_values() -> None:
    """Names with signs of YAML, and values that break a comment's line."""
    names = ("a: b", "#", "- x", "n", "1e3", "two\nlines", "\u2028", "é", "'", '"', "{", "x" * 128)
    data = stats(CLICK, *(column(name, "text") for name in names), valued("lost\nspec:", "evil\n  image: x\x1b[2J"))
    manifest = propose(data, TARGET, None, None).manifest
    text = write(manifest)
    assert yaml_text.read_documents(text) == (plain(manifest),)
    assert "\x1b" not in text
    spec = parse_document(plain(manifest))
    assert spec.data.columns is not None
    assert spec.data.columns.categories == names


def test_each_choice_has_a_comment() -> None:
    uncommented = [
        line for line in write(propose(stats(CLICK, USER), TARGET, None, None).manifest).splitlines() if "#" not in line
    ]
    assert {line.strip().rstrip(":").partition(":")[0] for line in uncommented} <= {
        *("apiVersion", "kind", "spec", "model", "data", "columns", "categories"),
        *("evaluation", "trainers", "shards", "snapshots"),
    }


def test_notes_follow_their_block() -> None:
    block = Block({"a": Block([Value(1, "one"), Value(2)], "list", ["note"]), "b": Value("x")})
    assert write(block) == "a: # list\n  - 1 # one\n  - 2\n  # note\nb: x\n"
