from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cpr_contract.pinned_data import SegmentScores
from cpr_contract.reports import TrainerReport, TrainerState
from cpr_contract.roster import AnchorRef, Counters
from cpr_trainer.runtime.environment import BadSpecError
from cpr_trainer.trainer import trackers as module
from cpr_trainer.trainer.trackers import KINDS, Tracking, metrics_of, read_trackers, tracking

REPORT = TrainerReport(
    1, "job", 0, 1, Counters(1, 1, 1), TrainerState.TRAINING, 10, 1000, 1000, 5000, (), (), (), None, loss=0.5,
    metrics=(("calibration", 1.01), ("odd", float("nan"))), saves=3,
)  # fmt: skip
ENDED = replace(REPORT, samples=5000, result=AnchorRef("k", "d", 1, 1, 5000))


class FakeTracker:
    def __init__(self, *, wrong: bool = False) -> None:
        self.wrong = wrong
        self.logged: list[tuple[int, Mapping[str, float]]] = []
        self.closed: bool | None = None

    def log(self, samples: int, metrics: Mapping[str, float]) -> None:
        if self.wrong:
            raise OSError("no answer")
        self.logged.append((samples, metrics))

    def close(self, *, finished: bool) -> None:
        self.closed = finished


def test_metrics_that_are_unknown_or_no_numbers_are_omitted() -> None:
    assert metrics_of(REPORT) == {
        "loss": 0.5, "calibration": 1.01, "saves": 3.0, "save_stall_seconds": 0.0, "paused_seconds": 0.0,
        "degraded_samples": 0.0,
    }  # fmt: skip


def test_scores_of_the_newest_segment_are_logged_with_its_pin() -> None:
    segment = SegmentScores(7, 600, 900, 290, 0.75, 0.5, None, 1.25)
    found = metrics_of(replace(REPORT, segment=segment))
    expected = {"segment_pin": 7.0, "segment_auc": 0.75, "segment_logloss": 0.5, "segment_calibration": 1.25}
    assert found == {**metrics_of(REPORT), **expected}


def test_leader_logs_every_ten_seconds_and_at_the_end_and_a_follower_opens_nothing() -> None:
    tracker, leads, report, opened = FakeTracker(), False, REPORT, 0

    def make() -> FakeTracker:
        nonlocal opened
        opened += 1
        return tracker

    tracked = Tracking((make,), lambda: report, lambda: leads)
    tracked.log_if_due(100.0)
    assert opened == 0
    leads = True
    for now, samples in ((100.0, 1000), (109.0, 1900), (110.0, 2000), (115.0, 2500), (120.5, 2500), (121.0, 2600)):
        report = replace(REPORT, samples=samples)
        tracked.log_if_due(now)
        assert opened == 1, "at once, though nothing is logged yet"
    assert [samples for samples, _ in tracker.logged] == [2000, 2500]
    report = replace(REPORT, samples=5000)
    tracked.log_if_due(122.0)
    assert [samples for samples, _ in tracker.logged][2:] == [5000], "no thread waits when all is trained"
    report = ENDED
    tracked.close()
    assert [samples for samples, _ in tracker.logged][3:] == []
    assert (opened, tracker.closed) == (1, True)


def test_failing_tracker_stops_neither_training_nor_the_others_and_is_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, whole, report = FakeTracker(wrong=True), FakeTracker(), REPORT
    tracked = Tracking((lambda: broken, lambda: whole), lambda: report, lambda: True)
    with caplog.at_level(logging.WARNING):
        tracked.log_if_due(1.0)
        for samples in (1000, 2000):
            report = replace(REPORT, samples=samples)
            tracked.log_if_due(float(samples))
    assert len(caplog.records) == 1, "only the first failure in a row is logged"
    broken.wrong, report = False, replace(REPORT, samples=3000)
    tracked.close()
    assert [samples for samples, _ in broken.logged] == [3000]
    assert [samples for samples, _ in whole.logged] == [1000, 2000, 3000]
    assert whole.closed is False, "the job continues elsewhere"


def test_hanging_tracker_is_abandoned_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAST_S", 0.1)
    let_go, entered = threading.Event(), threading.Event()

    class Hanging(FakeTracker):
        def close(self, *, finished: bool) -> None:
            entered.set()
            let_go.wait()

    with tracking((Hanging,), lambda: REPORT, lambda: True):
        pass
    entered.wait()
    (thread,) = [each for each in threading.enumerate() if each.name == "tracking"]
    assert thread.daemon
    let_go.set()
    thread.join()


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("comet", "Name some of tensorboard, mlflow, wandb"),
        ("tensorboard", "Write tensorboard:FOLDER"),
        ("mlflow:http://here", "Write mlflow."),
    ],
)
def test_misspelt_tracker_is_refused_with_a_remedy(text: str, remedy: str) -> None:
    job: Any = None
    with pytest.raises(BadSpecError) as found:
        read_trackers(text, job)
    assert remedy in f"{found.value} {found.value.remedy}"


def test_folder_of_runs_is_no_package_of_a_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of W&B leaves the folder wandb in the working folder, from which Python imports."""
    job: Any = None
    (tmp_path / "runs_of_wandb").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(KINDS, "wandb", replace(KINDS["wandb"], package="runs_of_wandb"))
    with pytest.raises(BadSpecError, match=r"the package runs_of_wandb is not installed") as found:
        read_trackers("wandb", job)
    assert "pip install 'cprjob[wandb]'" in found.value.remedy


def test_missing_package_of_a_tracker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    job: Any = None
    monkeypatch.setitem(KINDS, "mlflow", replace(KINDS["mlflow"], package="nowhere_to_be_found"))
    with pytest.raises(BadSpecError, match="nowhere_to_be_found"):
        read_trackers("mlflow", job)
