from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest

#: One line each of the operator and of kopf, which adds objects of its own, and an exception.
LINES = """
import kopf, logging, os
from kopf._core.actions.loggers import LocalObjectLogger
from cpr_operator.configuration import set_up_logs
set_up_logs(os.environ)
own, other = logging.getLogger("cpr_operator.x"), logging.getLogger("kopf.activities")
body = {"metadata": {"name": "n"}}
own.info("took %d s", 2)
other.debug("a debug line")
LocalObjectLogger(body=body, settings=kopf.OperatorSettings()).info("an event")
LocalObjectLogger(body=body, settings=kopf.OperatorSettings()).warning("a warning\\nof two lines")
try:
    int("x")
except ValueError:
    own.exception("it failed")
"""


def run(code: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], **environ}
    return subprocess.run([sys.executable, *code], env=environ, capture_output=True, text=True, check=False)


def logged(**environ: str) -> list[dict[str, Any]]:
    lines = run(["-c", LINES], CPR_OPERATOR_LOG_FORMAT="json", **environ).stderr.splitlines()
    return [json.loads(line) for line in lines]


def test_json_is_one_object_a_line_also_of_kopf_down_to_the_level() -> None:
    assert [line["message"] for line in logged(CPR_OPERATOR_LOG_LEVEL="debug")][:3] == [
        "took 2 s",
        "a debug line",
        "an event",
    ]
    assert [line["message"] for line in logged(CPR_OPERATOR_LOG_LEVEL="error")] == ["it failed"]
    first, warning, failure = logged()
    assert [set(first), set(warning)] == [{"time", "level", "logger", "message"}] * 2
    assert datetime.fromisoformat(first["time"]).utcoffset() is not None
    assert (first["level"], first["logger"], first["message"]) == ("INFO", "cpr_operator.x", "took 2 s")
    assert (warning["logger"], warning["message"]) == ("kopf.objects", "a warning\nof two lines")
    assert set(failure) == {"time", "level", "logger", "message", "exception"}
    assert failure["exception"].endswith("ValueError: invalid literal for int() with base 10: 'x'")


def test_text_is_the_default() -> None:
    first, *_ = run(["-c", LINES]).stderr.splitlines()
    assert first.endswith(" INFO cpr_operator.x: took 2 s")


@pytest.mark.parametrize(
    ("variable", "allowed"),
    [("CPR_OPERATOR_LOG_LEVEL", "info, debug, warning, error"), ("CPR_OPERATOR_LOG_FORMAT", "text, json")],
)
def test_another_value_ends_the_operator_and_is_named(variable: str, allowed: str) -> None:
    done = run(["-m", "cpr_operator"], **{variable: "loud"})
    assert done.returncode == os.EX_CONFIG
    assert done.stderr == f"{variable} is 'loud'; it must be one of {allowed}\n"
