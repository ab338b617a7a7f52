"""A plugin of pytest for `mutants.py cover`: the lines that each test reaches, and the seconds that it takes."""

from __future__ import annotations

import importlib
import json
import os
from collections import defaultdict
from pathlib import Path

import pytest


def _function(nodeid: str) -> str:
    """Return the test without its parameters."""
    return nodeid.partition("[")[0]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Record coverage for this test from here on."""
    importlib.import_module("coverage").Coverage.current().switch_context(_function(item.nodeid))


_SECONDS: defaultdict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the time of each test."""
    _SECONDS[_function(report.nodeid)] += report.duration


def pytest_sessionfinish() -> None:
    """Write the seconds of all tests, as JSON by test."""
    Path(os.environ["MUTANTS_SECONDS"]).write_text(json.dumps(_SECONDS))
