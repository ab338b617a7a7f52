"""Rules in CEL, evaluated here: which elements they name, and what becomes of those that cannot be evaluated."""

from __future__ import annotations

from typing import Any

import pytest

from cpr_operator.api.rules.rule import Rule, broken

POSITIVE = Rule("spec.tables[]/rows", "must be positive", "raise it", "self.rows > 0")


def fields(rule: Rule, document: dict[str, Any], **options: Any) -> list[str]:
    return [field for _, field in broken([rule], document, **options)]


def test_rule_names_each_element_that_violates_it() -> None:
    document = {"spec": {"tables": [{"rows": 0}, {"rows": 1}, {"rows": -1}]}}
    assert fields(POSITIVE, document) == ["spec.tables[0].rows", "spec.tables[2].rows"]


@pytest.mark.parametrize("document", [{}, {"spec": {}}, {"spec": {"tables": []}}])
def test_rule_holds_for_absent_fields(document: dict[str, Any]) -> None:
    assert fields(POSITIVE, document) == []


def test_rule_that_fails_to_evaluate_is_an_error_of_the_rule() -> None:
    with pytest.raises(RuntimeError, match=r"spec.tables\[0\]: self.rows > 0"):
        fields(POSITIVE, {"spec": {"tables": [{}]}})


def test_rule_with_a_malformed_field_is_skipped() -> None:
    document = {"spec": {"tables": [{"rows": -1}, {"rows": "many"}]}}
    assert fields(POSITIVE, document, malformed={"rows"}) == []
    assert fields(POSITIVE, document, malformed={"name"}) == ["spec.tables[0].rows"]


def test_transition_rule_gets_both_documents() -> None:
    frozen = Rule("/spec.image", "is frozen", "undo it", "self.spec.image == oldSelf.spec.image")
    before = {"spec": {"image": "a"}}
    assert fields(frozen, {"spec": {"image": "b"}}, before=before) == ["spec.image"]
    assert fields(frozen, before, before=before) == []


def test_rule_that_exceeds_the_api_servers_cost_limit_is_checked_by_the_client() -> None:
    known = Rule("/features", "unknown", "name it", "sets.contains(self.tables, self.features)", skip_on_server="true")
    assert known.server_cel == "true || sets.contains(self.tables, self.features)"
    assert fields(known, {"tables": ["a", "b"], "features": ["b", "c"]}) == ["features"]
    assert fields(known, {"tables": ["a", "b"], "features": ["b"]}) == []
