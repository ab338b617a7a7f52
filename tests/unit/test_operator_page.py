"""docs/operator.md names all that the operator can say."""

import re
from pathlib import Path
from typing import get_args

import pytest

from cpr_operator.api.status import ConditionType, Phase
from cpr_operator.reconcile.conditions import STORE_PROBLEMS
from cpr_operator.reconcile.pass_ import EventReason
from support.metric_names import metrics

PAGE = (Path(__file__).parents[2] / "docs" / "operator.md").read_text("utf-8")


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
def test_every_word_is_explained(title: str, words: tuple[str, ...]) -> None:
    assert words
    assert [word for word in words if f"`{word}" not in section(title)] == []


def test_the_metrics_are_those_that_there_are() -> None:
    assert sorted(re.findall(r"^\| `(\w+)` \|", section("Metrics"), re.MULTILINE)) == sorted(metrics())
