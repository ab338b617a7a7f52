"""The chart's alerts fire when they should, and only then: Prometheus' own unit tests of rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from support.chart import CHART, promtool

RULES = CHART / "files" / "alerts.yaml"
TESTS = Path(__file__).with_name("alerts.yaml")


def test_prometheus_takes_the_rules() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)


def test_each_alert_fires_when_it_should_and_only_then() -> None:
    promtool("test", "rules", TESTS)


def test_each_alert_is_seen_to_fire_and_not_to_fire() -> None:
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    told: list[dict[str, Any]] = [
        each for test in yaml.safe_load(TESTS.read_text("utf-8"))["tests"] for each in test["alert_rule_test"]
    ]
    assert {each["alertname"] for each in told if each["exp_alerts"]} == alerts
    assert {each["alertname"] for each in told if not each["exp_alerts"]} == alerts
