"""`cprjob import`: its options, and its output for the manifest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cpr_contract.requests import Imported, ImportedTable, ImportRequest
from cpr_operator.api import yaml_text
from cpr_operator.cli.command_errors import OptionError
from cpr_operator.cli.importing import checked, parse_map, rules_for, show

REQUEST = ImportRequest(("s3://bucket/x/", "/data/y.npy", "z.npy"), "ranker-2")
USER = ImportedTable("user", "emb.user.weight", 100, 100, 8, "RowNumber", sums=True)
SITE = ImportedTable("site", "emb.site.weight", 50, 100, 8, "XXH64 with seed 7", sums=False)
IMPORTED = Imported("import-ranker/manifest.json", (USER,), 6, (), (), ())


def test_import_paths_are_made_absolute_here_and_must_be_in_a_pod() -> None:
    assert checked(REQUEST, here=True).sources == ("s3://bucket/x/", "/data/y.npy", str(Path.cwd() / "z.npy"))
    with pytest.raises(OptionError, match=r"--from z.npy: a pod does not see this folder"):
        checked(REQUEST, here=False)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a/b", "..", "a" * 49])
def test_import_name_must_fit_into_keys(name: str) -> None:
    with pytest.raises(OptionError, match="--name"):
        checked(replace(REQUEST, name=name), here=True)


def test_parse_map_permits_equals_signs_in_tensor_names() -> None:
    assert parse_map("a=b.weight=user") == ("a=b.weight", "user")
    with pytest.raises(OptionError, match="is not TENSOR=NAME"):
        parse_map("user")


def test_rules_for_has_only_required_fields() -> None:
    assert rules_for(IMPORTED) == {"restoreFrom": {"anchor": IMPORTED.key}}
    longer = replace(USER, wanted_rows=200)
    imported = replace(IMPORTED, tables=(longer, SITE), layers=None, missing_tables=("item",))
    assert rules_for(imported)["restoreFrom"] == {
        "anchor": IMPORTED.key,
        "missing": "Initialise",
        "dense": "Initialise",
        "map": [
            {"table": "user", "from": "user", "resized": "Truncate"},
            {"table": "site", "from": "site", "resized": "Rehash"},
        ],
    }


def test_import_prints_unused_parts_and_unchecked_assumptions() -> None:
    console = Console(width=120, record=True, quiet=False)
    unused = tuple(f"optim.state.{number} [3]" for number in range(25))
    page = replace(USER, name="page", ids="Vocabulary", wanted_rows=200)
    show(replace(IMPORTED, tables=(USER, SITE, page), missing_layers=("top.0.weight [3, 5]",), unused=unused), console)
    text = console.export_text()
    assert "sums of RowWiseAdagrad" in text
    assert "Not in the source, so with first values:\n  top.0.weight [3, 5]\n" in text
    assert "  optim.state.19 [3]\n  and 5 more\n" in text
    assert "Row r of site has the ids with a hash (XXH64 with seed 7) of r modulo 100" in text
    assert "Row r of user" not in text
    assert "Row r of page has the r-th value of its vocabulary, and row 0 all other ids: make sure" in text
    rules = yaml_text.read_value(text.partition("Start from it by\n")[2])
    assert {"table": "page", "from": "page", "resized": "Truncate"} in rules["restoreFrom"]["map"]


@pytest.mark.parametrize(
    ("source", "printed"),
    [
        ({}, "Row r of user has the id r: make sure"),
        ({"row_ids": "user.ids"}, None),
        (
            {"row_keys": "user.keys"},
            "Row r of user has the id of the r-th key in user.keys, an XXH64 (Dynamic with seed",
        ),
        ({"row_ids": "user.ids", "dropped": 1234}, "1,234 rows of user found their places full, and were left out"),
    ],
)
def test_import_prints_the_part_of_a_dynamic_table_that_is_left_out_or_assumed(
    source: dict[str, Any], printed: str | None
) -> None:
    console = Console(width=120, record=True, quiet=False)
    user = replace(USER, ids="Dynamic with seed 7", wanted_rows=4096, **source)
    show(replace(IMPORTED, tables=(user,)), console)
    text = console.export_text()
    assert printed is None or printed in text
    assert ("make sure" in text) == (user.row_ids is None)
    assert rules_for(replace(IMPORTED, tables=(user,))) == {"restoreFrom": {"anchor": IMPORTED.key}}, "not resized"
