from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest

from cpr_operator.api.status import Progress, Status
from cpr_operator.cli.pictures.job_report import FailureOutcome, Span, job_report, outcome, speeds
from support.example_report import EVENTS, START, STATUS, document

NOW = START + 100


def test_last_point_is_the_present_state() -> None:
    report = job_report(document(), EVENTS, NOW)
    assert [each.samples for each in report.points] == [10_000, 30_000, 40_000, 20_000, 60_000]
    assert report.points[-1].auc == 0.76
    assert report.points[-1].calibration == 1.01
    assert (report.points[-1].saved_samples, report.points[-1].generation) == (50_000, 2)


def test_last_point_is_not_repeated() -> None:
    now = STATUS.evolve(progress=STATUS.progress.evolve(updated=START + 60, samples=20_000))
    assert [each.samples for each in job_report(document(now), (), NOW).points] == [10_000, 30_000, 40_000, 20_000]


def test_job_that_never_started_has_no_points_and_no_spans() -> None:
    report = job_report({"metadata": {"name": "new"}}, (), NOW)
    assert (report.points, list(report.spans()), report.samples_at(NOW)) == ((), [], 0)
    waits = Status(progress=Progress(updated=NOW))
    assert job_report(document(waits), (), NOW).points == ()


def test_outcome_of_each_failure() -> None:
    found = [outcome(each) for each in STATUS.failures]
    assert found == ["Partial", "Replayed", "RolledBack", "NothingLost", "UnderWay"]
    assert set(found) == set(get_args(FailureOutcome))


@pytest.mark.parametrize(("second", "samples"), [(5, 0), (10, 10_000), (29, 10_000), (55, 40_000), (65, 20_000)])
def test_samples_at_a_time(second: int, samples: int) -> None:
    assert job_report(document(), (), NOW).samples_at(START + second) == samples


def test_member_is_unavailable_until_the_end_of_its_recovery() -> None:
    spans = [each for each in job_report(document(), (), NOW).spans() if each.member == "shard/1"]
    assert spans == [
        Span("shard/1", START, START + 20, unavailable=False),
        Span("shard/1", START + 20, START + 25, unavailable=True),
        Span("shard/1", START + 25, START + 35, unavailable=False),
        Span("shard/1", START + 35, START + 40, unavailable=True),
        Span("shard/1", START + 40, NOW, unavailable=False),
    ]


def test_lost_member_is_unavailable_until_now_or_the_end_of_the_job() -> None:
    *_, last = job_report(document(), (), NOW).spans()
    assert last == Span("trainer/0", START + 80, NOW, unavailable=True)
    ended = STATUS.evolve(completion_time=START + 95)
    *_, last = job_report(document(ended), (), NOW).spans()
    assert last.end == START + 95


def test_spans_of_simultaneous_failures_never_overlap() -> None:
    twice = STATUS.evolve(failures=(STATUS.failures[0], STATUS.failures[0].evolve(time=START + 22)))
    spans = [each for each in job_report(document(twice), (), NOW).spans() if each.member == "shard/1"]
    assert all(each.begin <= each.end for each in spans)
    assert all(before.end <= after.begin for before, after in pairwise(spans))


def test_speeds_include_pauses_and_no_rollback() -> None:
    assert speeds(job_report(document(), (), NOW).points) == [None, 1000.0, 500.0, None, pytest.approx(40_000 / 30)]


def test_restart_in_place_ends_when_it_is_recorded() -> None:
    last = STATUS.failures[-1]
    in_place = last.evolve(time=START + 90, role="shard", index=0, process=1, lost_samples=0, recovery_seconds=0.25)
    for took_s, begin in ((0.25, START + 89.75), (None, START + 90)):
        found = STATUS.evolve(failures=(in_place.evolve(recovery_seconds=took_s),))
        spans = [each for each in job_report(document(found), (), NOW).spans() if each.member == "shard/0"]
        assert spans == [
            Span("shard/0", START, begin, unavailable=False),
            Span("shard/0", begin, START + 90, unavailable=True),
            Span("shard/0", START + 90, NOW, unavailable=False),
        ]
        assert outcome(found.failures[0]) == "NothingLost"
