"""The queries of the chart's dashboard, with Grafana's values of its variables."""

from __future__ import annotations

import json
import re
from typing import Any

from support.chart import CHART

DASHBOARD: dict[str, Any] = json.loads((CHART / "files" / "dashboard.json").read_text("utf-8"))


def panel_queries(namespace: str, cprjob: str, window: str) -> list[str]:
    """Return the queries of all panels. window: what rates are taken over."""
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    for variable, value in (("$__rate_interval", window), ("$namespace", namespace), ("$cprjob", cprjob)):
        queries = [query.replace(variable, value) for query in queries]
    assert [query for query in queries if "$" in query] == []
    return queries


def variable_queries() -> dict[str, str]:
    """Return which series have the values of a variable, by the variable's name, for all namespaces."""
    variables = (each for each in DASHBOARD["templating"]["list"] if each["type"] == "query")
    found = {each["name"]: re.fullmatch(r"label_values\((.+), (\w+)\)", each["query"]["query"]) for each in variables}
    assert all(found.values())
    return {match[2]: match[1].replace("$namespace", ".*") for match in found.values() if match}
