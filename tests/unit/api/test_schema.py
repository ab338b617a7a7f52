from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from cpr_operator.api import crd, rules, transitions
from support.change_cases import CHANGES
from support.rule_cases import RULES

EVERY = (*rules.STATIC, *transitions.TRANSITIONS)

FORBIDDEN = {"$ref", "$defs", "anyOf", "allOf", "oneOf", "const", "title", "prefixItems", "propertyNames"}


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema node below `node`, with its path; values of defaults and the like are no nodes."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for below in ("items", "additionalProperties"):
        if below in node:
            yield from nodes(node[below], f"{path}.{below}")


def schema() -> dict[str, Any]:
    found: dict[str, Any] = crd.build()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


ALL = tuple(nodes(schema()))


def test_schema_has_only_keywords_of_structural_schemas() -> None:
    assert [(path, FORBIDDEN & node.keys()) for path, node in ALL if FORBIDDEN & node.keys()] == []
    union = "x-kubernetes-int-or-string"
    assert [path for path, node in ALL if ("type" in node) == (union in node)] == []
    assert [path for path, node in ALL if union in node] == [".spec.trainers.workers"]
    assert [path for path, node in ALL if not isinstance(node.get("exclusiveMinimum", True), bool)] == []


def test_schema_documents_every_field() -> None:
    mute = [
        p
        for p, node in ALL
        if not node.get("description") and p.rsplit(".", 1)[-1] not in {"items", "additionalProperties"}
    ]
    assert mute == [".apiVersion", ".kind", ".metadata"]


def test_schema_bounds_every_list_map_and_string() -> None:
    bound = {"array": "maxItems", "string": "maxLength"}
    unbounded = [
        path
        for path, node in ALL
        if path not in {".apiVersion", ".kind"}
        and not {"enum", "format"} & node.keys()
        and bound.get(node.get("type", "string"), "type") not in node
    ]
    assert unbounded == []
    assert [path for path, node in ALL if "additionalProperties" in node and "maxProperties" not in node] == []


def test_schema_has_the_list_type_of_every_list() -> None:
    kinds = {path: node["x-kubernetes-list-type"] for path, node in ALL if node.get("type") == "array"}
    maps = {path for path, kind in kinds.items() if kind == "map"}
    by_name = {".spec.model.features", ".spec.model.tables", ".spec.restoreFrom.map", ".status.conditions"}
    assert maps == by_name | {".spec.data.columns.labelValues"}
    assert set(kinds.values()) == {"map", "atomic"}


def test_schema_has_every_cel_rule_once() -> None:
    written = [rule["message"] for _, node in ALL for rule in node.get("x-kubernetes-validations", ())]
    assert sorted(written) == sorted(rule.text for rule in EVERY if rule.cel)


def test_every_rule_has_a_valid_and_an_invalid_document() -> None:
    """`tests/apiserver` shows them to a real API server."""
    cases = [(re.sub(r"\[\d+\]", "", case.field), case.message) for case in RULES]
    shown = {rule for rule in rules.STATIC for field, message in cases if field == rule.field and message in rule.text}
    shown |= {rule for rule in transitions.TRANSITIONS for change in CHANGES if rule.text.startswith(change.message)}
    assert set(EVERY) - shown == set()


def test_printer_columns_show_fields() -> None:
    shown = {path for _, _, path, *_ in crd.COLUMNS} - {".metadata.creationTimestamp"}
    assert shown <= {path for path, _ in ALL}


def test_schema_hash_changes_with_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    before = crd.schema_hash()
    monkeypatch.setattr(crd, "COLUMNS", ())
    assert crd.schema_hash() != before
