"""The chart's objects for Prometheus and Grafana match the ports, labels and metrics of operator and pods."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from cpr_contract import env
from cpr_operator.api.status import ConditionType, Phase
from support.chart import CHART, of_kind, promtool, render
from support.dashboard import DASHBOARD, panel_queries
from support.metric_names import OF_PODS, labels, own_labels, series

OF_POD_METRICS = ("cprjob_trainer_", "cprjob_shard_")
ALERTS = [
    rule
    for group in yaml.safe_load((CHART / "files" / "alerts.yaml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
ALERT_TESTS = Path(__file__).with_name("alerts.yaml")
PAGE = (CHART.parents[1] / "docs" / "metrics.md").read_text("utf-8")


def queries() -> Iterator[str]:
    """All that alerts and dashboard ask Prometheus."""
    yield from (alert["expr"] for alert in ALERTS)
    yield from (target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ()))
    variables: list[dict[str, Any]] = DASHBOARD["templating"]["list"]
    yield from (each["query"]["query"] for each in variables if each["type"] == "query")


def queried(label: str) -> set[str]:
    """The values of a label that some query names."""
    found = re.findall(rf'\b{label}=~?"([^"$]*)"', " ".join(queries()))
    return {value for values in found for value in values.split("|")}


def test_alerts_fire_when_they_should_and_only_then() -> None:
    """Prometheus runs alerts.yaml, its own unit tests of rules; each alert fires there, and is seen not to fire."""
    promtool("check", "rules", "--lint=all", "--lint-fatal", CHART / "files" / "alerts.yaml")
    promtool("test", "rules", ALERT_TESTS)
    tests = yaml.safe_load(ALERT_TESTS.read_text("utf-8"))["tests"]
    expected = [each for test in tests for each in test["alert_rule_test"]]
    names = {alert["alert"] for alert in ALERTS}
    assert {each["alertname"] for each in expected if each["exp_alerts"]} == names
    assert {each["alertname"] for each in expected if not each["exp_alerts"]} == names


def test_queries_use_existing_metrics() -> None:
    for query in queries():
        names = set(re.findall(r"\bcprjob_\w+", query))
        assert names, query
        assert names <= series(), query


def test_prometheus_parses_every_query_of_the_dashboard(tmp_path: Path) -> None:
    """As recording rules, with what Grafana puts in the place of its variables."""
    given_queries = panel_queries(namespace="a|b", cprjob=".*", window="5m")
    assert given_queries
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(given_queries)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", tmp_path / "rules.yaml")


def foreign(query: str) -> set[str]:
    """The labels that a query names and its series do not have."""
    given_queries = re.findall(r"\b(cprjob_\w+)(?:\{([^}]*)\})?", query)
    wrong = {
        label
        for name, selector in given_queries
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)
        if label not in labels()[name]
    }
    of_all = frozenset[str]().union(*(labels()[name] for name, _ in given_queries))
    grouped = re.findall(r"\b(?:by|on) \(([^)]*)\)", query)
    return wrong | {label for each in grouped for label in each.split(", ")} - of_all


def test_queries_name_only_labels_that_their_series_have() -> None:
    assert {query: wrong for query in queries() if (wrong := foreign(query))} == {}


def test_prometheus_renames_no_label_of_a_metric() -> None:
    """A label of a target takes the place of the metric's own, which becomes exported_...; only `namespace` is kept.

    The operator's `namespace` is the job's, and the ServiceMonitor has honorLabels. The PodMonitor has not.
    """
    of_scrapes = {"job", "instance", "namespace", "pod", "container", "endpoint", "service", "node"}
    own = own_labels()
    assert own["cprjob_phase"] == {"namespace", "cprjob", "phase"}
    clashes = {name: found for name, stated in own.items() if (found := stated & (of_scrapes | OF_PODS))}
    of_operator = {name: found for name, found in clashes.items() if not name.startswith(OF_POD_METRICS)}
    assert clashes == of_operator, "samples of pods have no label of a target"
    assert set[str]().union(*of_operator.values()) <= {"namespace", "cprjob", "role"}


def test_legends_name_only_labels_that_their_query_keeps() -> None:
    for target in (target for panel in DASHBOARD["panels"] for target in panel.get("targets", ())):
        query, legend = target["expr"], target.get("legendFormat", "")
        names = re.findall(r"\bcprjob_\w+", query.partition("{")[0])
        plain = labels()[names[0]] if names == [query] else frozenset()
        retained = {label for each in re.findall(r"\bby \(([^)]*)\)", query) for label in each.split(", ")}
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= retained | plain, target


@pytest.mark.parametrize(("label", "known"), [("condition", ConditionType), ("phase", Phase)])
def test_queries_use_existing_conditions_and_phases(label: str, known: Any) -> None:
    assert queried(label)
    assert queried(label) <= set(get_args(known))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_alerts_have_a_summary_and_only_labels_of_their_query(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in {"warning", "critical"}
    assert set(alert["annotations"]) == {"summary", "description"}
    retained = {label for labels in re.findall(r"\bby \(([^)]*)\)", alert["expr"]) for label in labels.split(", ")}
    assert set(re.findall(r"\$labels\.(\w+)", alert["annotations"]["description"])) <= retained


def test_page_explains_every_alert() -> None:
    section = PAGE.partition("\n## Monitoring\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [alert["alert"] for alert in ALERTS]


def test_rule_has_all_alerts_unchanged() -> None:
    (rule,) = of_kind(render("prometheusRule.enabled=true", "prometheusRule.labels.release=p"), "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "p"
    assert list(rule["spec"]) == ["groups"]
    assert [each for group in rule["spec"]["groups"] for each in group["rules"]] == ALERTS


def test_dashboard_is_found_by_its_label() -> None:
    values = ("dashboard.enabled=true", "dashboard.annotations.grafana_folder=Training")
    (config,) = of_kind(render(*values), "ConfigMap")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert config["metadata"]["annotations"] == {"grafana_folder": "Training"}
    assert [json.loads(text) for text in config["data"].values()] == [DASHBOARD]


@pytest.mark.parametrize(
    ("values", "namespaces"), [((), {"any": True}), (("watchNamespaces={a,b}",), {"matchNames": ["a", "b"]})]
)
def test_pods_of_jobs_are_scraped_with_the_name_of_the_job(values: tuple[str, ...], namespaces: dict[str, Any]) -> None:
    (monitor,) = of_kind(render("podMonitor.enabled=true", "podMonitor.labels.release=p", *values), "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "p"
    spec = monitor["spec"]
    assert spec["namespaceSelector"] == namespaces
    assert spec["selector"]["matchExpressions"] == [
        {"key": env.LABEL_JOB, "operator": "Exists"},
        {"key": env.LABEL_ROLE, "operator": "In", "values": [env.ROLE_TRAINER, env.ROLE_SHARD]},
    ]
    (endpoint,) = spec["podMetricsEndpoints"]
    labels = {"cprjob": env.LABEL_JOB, "role": env.LABEL_ROLE, "index": env.LABEL_INDEX}
    assert endpoint == {
        "port": "http",
        "path": "/metrics",
        "interval": "30s",
        "tlsConfig": {"insecureSkipVerify": True},
        "relabelings": [
            {
                "sourceLabels": ["__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", env.LABEL_ENCRYPTION)],
                "regex": "TLS",
                "targetLabel": "__scheme__",
                "replacement": "https",
            },
            *(
                {"sourceLabels": ["__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", label)], "targetLabel": name}
                for name, label in labels.items()
            ),
        ],
    }
