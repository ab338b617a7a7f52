"""docs/operator.md names all that the operator can say."""

from pathlib import Path
from typing import get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cpr_operator.api.status import ConditionType, Phase
from cpr_operator.metrics import Metrics
from cpr_operator.reconcile.conditions import STORE_PROBLEMS
from cpr_operator.reconcile.world import EventReason

METRICS = tuple(family.name for family in text_string_to_metric_families(Metrics().text().decode()))
PAGE = (Path(__file__).parents[2] / "docs" / "operator.md").read_text("utf-8")


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("Phases", get_args(Phase)),
        ("Conditions", (*get_args(ConditionType), *STORE_PROBLEMS)),
        ("Events", tuple(EventReason)),
        ("Metrics", tuple(name for name in METRICS if not name.endswith("_created"))),
    ],
)
def test_every_word_is_explained(title: str, words: tuple[str, ...]) -> None:
    assert words
    assert [word for word in words if f"`{word}" not in section(title)] == []
