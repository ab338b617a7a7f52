from pathlib import Path

import pytest

from cpr_contract.trace import TracedStep
from cpr_trainer.runtime import timing as module
from cpr_trainer.runtime.timing import Trace


def test_each_step_says_where_its_time_went(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([10.0, 11.0, 13.0, 16.0, 20.0, 25.0, 31.0])
    monkeypatch.setattr(module, "monotonic", lambda: next(ticks))
    trace = Trace(tmp_path / "steps")
    for stage in ("wait", "compute", "wait"):
        trace.lap(stage)
    trace.end(7)
    trace.lap("compute")
    trace.end(8)
    trace.close()
    first, second = map(TracedStep.of_line, (tmp_path / "steps").read_text().splitlines())
    assert first == TracedStep(7, 20.0, {"wait": 4.0, "compute": 2.0, "rest": 4.0})
    assert second == TracedStep(8, 31.0, {"compute": 5.0, "rest": 6.0})


def test_nothing_is_timed_where_nobody_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace(None)
    monkeypatch.setattr(module, "monotonic", lambda: pytest.fail("the clock was read"))
    trace.lap("compute")
    trace.end(1)
