"""The line about training in a trainer's log."""

from __future__ import annotations

from typing import Any

from cpr_contract import CONTRACT_VERSION
from cpr_contract.reports import HeldOutScores, TrainerReport, TrainerState
from cpr_contract.roster import Counters
from cpr_trainer.trainer.progress import Minute, line


def report(**figures: Any) -> TrainerReport:
    return TrainerReport(
        contract=CONTRACT_VERSION, job_uid="", index=0, incarnation=1, counters=Counters(1, 1, 1),
        state=TrainerState.TRAINING, step=1200, samples=307_200, samples_started=307_200, total_samples=1_000_000,
        waiting_for=(), silent=(), lost=(), problem=None, **figures,
    )  # fmt: skip


def test_all_figures_are_in_the_line() -> None:
    assert line(report(samples_per_s=6928.0, loss=0.45678, auc=0.75)) == (
        "step 1,200, 307,200 of 1,000,000 samples, 6,928 samples/s, loss 0.4568, AUC 0.7500, ETA 0:01:40"
    )


def test_the_last_evaluation_is_in_the_line() -> None:
    found = HeldOutScores(1000, 256_000, 500, 0.8125, 0.5, 0.9, 1.1)
    assert line(report(auc=0.75, evaluation=found)).endswith("AUC 0.7500, held-out AUC 0.8125 at step 1,000")


def test_figures_that_are_not_known_are_left_out() -> None:
    assert line(report()) == "step 1,200, 307,200 of 1,000,000 samples"
    assert line(report(loss=0.5)) == "step 1,200, 307,200 of 1,000,000 samples, loss 0.5000"


def test_a_line_is_due_once_a_minute() -> None:
    minute = Minute(100.0)
    due = [now for now in range(100, 400) if minute.due(float(now))]
    assert due == [160, 220, 280, 340]
    assert minute.due(1000.0), "after a long step"
    assert not minute.due(1059.0)
    assert minute.due(1060.0)
