import threading
from dataclasses import replace
from time import sleep
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from cpr_contract import CONTRACT_VERSION
from cpr_contract.codec import to_json
from cpr_contract.pinned_data import SegmentScores
from cpr_contract.reports import (
    GroupScores,
    HeldOutScores,
    Problem,
    Recorded,
    RosterNote,
    TrainerReport,
    TrainerState,
)
from cpr_contract.roster import Counters
from cpr_trainer.trainer.status import ProgressTimer, ReportCollector, StatusPublisher, progress_line

EVALUATION = HeldOutScores(10, 1000, 50, 0.8, 0.5, None, 1.25)
SEGMENT = SegmentScores(7, 600, 900, 290, 0.625, 0.5, None, 1.5)


def _report() -> TrainerReport:
    counters = Counters(1, 1, 1)
    return TrainerReport(1, "job", 0, 1, counters, TrainerState.TRAINING, 0, 0, 0, 0, (), (), (), None)


def test_pause_is_reported_and_counted() -> None:
    status = StatusPublisher(_report())
    with status.paused():
        assert status.report().state is TrainerState.PAUSED
    assert status.report().state is TrainerState.TRAINING
    assert status.take_waited_s() > 0
    assert status.take_waited_s() == 0


def test_interrupted_pause_restores_the_state_before() -> None:
    status = StatusPublisher(_report())
    with pytest.raises(InterruptedError), status.paused():
        raise InterruptedError
    assert status.state is TrainerState.TRAINING


def test_short_wait_for_peers_is_no_pause() -> None:
    status = StatusPublisher(_report())
    status.pause_after_s = 60.0
    seen = []
    with status.waiting(lambda: seen.append(status.state)) as poll_interrupts:
        poll_interrupts()
    assert seen == [TrainerState.TRAINING]
    assert status.take_waited_s() == 0


def test_long_wait_is_a_pause_from_its_beginning() -> None:
    status = StatusPublisher(_report())
    status.pause_after_s = 0.05
    seen = set()
    with status.waiting(lambda: seen.add(status.state)) as poll_interrupts:
        while TrainerState.PAUSED not in seen:
            poll_interrupts()
    assert status.state is TrainerState.TRAINING
    assert status.take_waited_s() > 0.05


def test_wait_of_a_suspended_process_is_a_pause_without_polls() -> None:
    status = StatusPublisher(_report())
    status.pause_after_s = 0.0
    with status.waiting(lambda: None):
        pass
    assert status.take_waited_s() > 0


def test_lasting_problem_is_logged_and_reported_while_there_is_no_other(caplog: pytest.LogCaptureFixture) -> None:
    slow, outage = Problem("Slow", "slow", "wait"), Problem("StoreUnreachable", "gone", "wait")
    status = StatusPublisher(_report())
    status.add_lasting_problem(slow)
    assert caplog.messages == ["slow wait"]
    assert status.report().problem == slow
    status.update(problem=outage)
    assert status.report().problem == outage
    status.update(problem=None)
    assert status.report().problem == slow
    status.fill_in = lambda report: replace(report, problem=report.problem or outage)
    assert status.report().problem == outage, "a problem that is looked up takes precedence, too"
    status.fill_in = lambda report: report
    status.add_lasting_problem(outage)
    assert status.report().problem == slow, "the first one stays"
    later = StatusPublisher(_report())
    later.add_lasting_problem(outage)
    assert later.report().problem == outage
    assert status.report().state is TrainerState.TRAINING


def test_scores_by_group_are_waited_for_until_they_are_recorded() -> None:
    """Other requests for a report do not count, nor do records of another generation."""
    status = StatusPublisher(_report())
    generation = status.report().counters.generation
    status.update(evaluation=replace(EVALUATION, step=20, groups=(GroupScores("shop", 50, 0.7, 0.5, None, None),)))
    records = [Recorded(generation, "", 10), Recorded(generation + 1, "", 20), Recorded(generation, "", 20)]
    left = iter((*map(to_json, records[:2]), "no JSON", to_json(records[2])))

    def request() -> None:
        for recorded in left:
            status.report()
            status.on_recorded(recorded)
            sleep(0.1)

    client = threading.Thread(target=request)
    client.start()
    status.wait_until_recorded(within_s=60)
    assert status.recorded == records[2]
    status.on_roster_note(b'{"counters":{"roster":7}}')
    assert status.recorded == records[2], "a roster without a note changes nothing"
    noted = replace(records[2], anchor="noted")
    status.on_roster_note(to_json(RosterNote(noted)).encode())
    assert status.recorded == noted
    client.join()


def test_wait_for_scores_by_group_has_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    status = StatusPublisher(_report())
    status.update(evaluation=replace(EVALUATION, groups=(GroupScores("shop", 50, 0.7, 0.5, None, None),)))
    status.wait_until_recorded(within_s=0.01)
    assert "did not record the scores by group" in caplog.text


@pytest.mark.parametrize("evaluation", [None, EVALUATION])
def test_evaluation_without_groups_is_not_waited_for(evaluation: HeldOutScores | None) -> None:
    status = StatusPublisher(_report())
    status.update(evaluation=evaluation)
    status.wait_until_recorded(within_s=float("inf"))


def test_metrics_are_the_report() -> None:
    status = StatusPublisher(_report())
    status.fill_in = lambda report: replace(report, saves=3)
    status.update(samples=1200, auc=0.75, metrics=(("buy.auc", 0.5),))
    status.update(evaluation=EVALUATION, segment=SEGMENT)
    registry = CollectorRegistry()
    registry.register(ReportCollector(status))
    page = generate_latest(registry).decode()

    assert "cprjob_trainer_samples 1200.0" in page
    assert "cprjob_trainer_auc_ratio 0.75" in page
    assert "cprjob_trainer_saves_total 3.0" in page
    assert 'cprjob_trainer_metric{name="buy.auc"} 0.5' in page
    assert "cprjob_trainer_held_out_auc_ratio 0.8" in page
    assert "cprjob_trainer_held_out_calibration_ratio 1.25" in page
    assert "cprjob_trainer_segment_pin 7.0" in page
    assert "cprjob_trainer_segment_auc_ratio 0.625" in page
    assert "cprjob_trainer_segment_normalised_entropy_ratio" not in page, "it is not defined either"
    assert "cprjob_trainer_held_out_normalised_entropy_ratio" not in page, "it is not defined"
    assert "cprjob_trainer_loss_nats" not in page, "what is not known is left out"
    assert 'cprjob_trainer_state{state="Training"} 1.0' in page


def report(**fields: Any) -> TrainerReport:
    return TrainerReport(
        contract=CONTRACT_VERSION, job_uid="", index=0, incarnation=1, counters=Counters(1, 1, 1),
        state=TrainerState.TRAINING, step=1200, samples=307_200, samples_started=307_200, total_samples=1_000_000,
        waiting_for=(), silent=(), lost=(), problem=None, **fields,
    )  # fmt: skip


def test_progress_line_has_all_values() -> None:
    assert progress_line(report(samples_per_s=6928.0, loss=0.45678, auc=0.75)) == (
        "step 1,200, 307,200 of 1,000,000 samples, 6,928 samples/s, loss 0.4568, AUC 0.7500, ETA 0:01:40"
    )


def test_progress_line_has_the_last_evaluation() -> None:
    found = HeldOutScores(1000, 256_000, 500, 0.8125, 0.5, 0.9, 1.1)
    assert progress_line(report(auc=0.75, evaluation=found)).endswith("AUC 0.7500, held-out AUC 0.8125 at step 1,000")


def test_progress_line_has_the_newest_segment() -> None:
    found = progress_line(report(auc=0.75, segment=SEGMENT))
    assert ", AUC 0.7500, AUC 0.6250 of the segment up to pin 7" in found


def test_progress_line_omits_unknown_values() -> None:
    assert progress_line(report()) == "step 1,200, 307,200 of 1,000,000 samples"
    assert progress_line(report(loss=0.5)) == "step 1,200, 307,200 of 1,000,000 samples, loss 0.5000"


def test_progress_line_is_due_once_a_minute() -> None:
    minute = ProgressTimer(100.0)
    due = [now for now in range(100, 400) if minute.due(float(now))]
    assert due == [160, 220, 280, 340]
    assert minute.due(1000.0), "after a long step"
    assert not minute.due(1059.0)
    assert minute.due(1060.0)
