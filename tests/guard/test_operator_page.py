"""docs/operator.md and docs/metrics.md name all phases, conditions, events and metrics of the operator."""

import re
from pathlib import Path
from typing import get_args

import pytest

from cpr_operator.api.status import ConditionType, Phase
from cpr_operator.reconcile.conditions import STORE_PROBLEMS
from cpr_operator.reconcile.types import EventReason
from support.metric_names import metrics

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "operator.md").read_text("utf-8")


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("Phases", get_args(Phase)),
        ("Conditions", (*get_args(ConditionType), *STORE_PROBLEMS)),
        ("Events", tuple(EventReason)),
    ],
)
def test_page_explains_every_phase_condition_and_event(title: str, words: tuple[str, ...]) -> None:
    assert words
    assert [word for word in words if f"`{word}" not in section(title)] == []


def test_page_lists_exactly_the_metrics() -> None:
    tables = (DOCS / "metrics.md").read_text("utf-8").partition("## Monitoring\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", tables, re.MULTILINE)) == sorted(metrics())
