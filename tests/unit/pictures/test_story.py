from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest

from cpr_operator.api.status import Progress, Status
from cpr_operator.cli.pictures.story import Span, Tier, speeds, story_of, tier
from support.told_story import EVENTS, START, STATUS, document

NOW = START + 100


def test_the_last_point_is_the_job_as_it_is() -> None:
    story = story_of(document(), EVENTS, NOW)
    assert [each.samples for each in story.points] == [10_000, 30_000, 40_000, 20_000, 60_000]
    assert story.points[-1].auc == 0.76
    assert story.points[-1].calibration == 1.01
    assert (story.points[-1].saved_samples, story.points[-1].generation) == (50_000, 2)


def test_a_job_whose_last_point_is_now_has_it_once() -> None:
    now = STATUS.evolve(progress=STATUS.progress.evolve(updated=START + 60, samples=20_000))
    assert [each.samples for each in story_of(document(now), (), NOW).points] == [10_000, 30_000, 40_000, 20_000]


def test_a_job_that_never_began_has_no_points_and_no_spans() -> None:
    story = story_of({"metadata": {"name": "new"}}, (), NOW)
    assert (story.points, list(story.spans()), story.samples_at(NOW)) == ((), [], 0)
    waits = Status(progress=Progress(updated=NOW))
    assert story_of(document(waits), (), NOW).points == ()


def test_each_failure_has_one_outcome_and_all_outcomes_occur() -> None:
    found = [tier(each) for each in STATUS.failures]
    assert found == ["Partial", "Replayed", "RolledBack", "NothingLost", "UnderWay"]
    assert set(found) == set(get_args(Tier))


@pytest.mark.parametrize(("second", "samples"), [(5, 0), (10, 10_000), (29, 10_000), (55, 40_000), (65, 20_000)])
def test_a_time_is_told_in_samples(second: int, samples: int) -> None:
    assert story_of(document(), (), NOW).samples_at(START + second) == samples


def test_members_are_away_from_a_failure_to_the_end_of_its_recovery() -> None:
    spans = [each for each in story_of(document(), (), NOW).spans() if each.member == "shard/1"]
    assert spans == [
        Span("shard/1", START, START + 20, away=False),
        Span("shard/1", START + 20, START + 25, away=True),
        Span("shard/1", START + 25, START + 35, away=False),
        Span("shard/1", START + 35, START + 40, away=True),
        Span("shard/1", START + 40, NOW, away=False),
    ]


def test_a_member_that_is_not_back_is_away_until_now_and_one_of_an_ended_job_until_its_end() -> None:
    *_, last = story_of(document(), (), NOW).spans()
    assert last == Span("trainer/0", START + 80, NOW, away=True)
    ended = STATUS.evolve(completion_time=START + 95)
    *_, last = story_of(document(ended), (), NOW).spans()
    assert last.end == START + 95


def test_spans_of_failures_at_once_never_overlap() -> None:
    twice = STATUS.evolve(failures=(STATUS.failures[0], STATUS.failures[0].evolve(time=START + 22)))
    spans = [each for each in story_of(document(twice), (), NOW).spans() if each.member == "shard/1"]
    assert all(each.begin <= each.end for each in spans)
    assert all(before.end <= after.begin for before, after in pairwise(spans))


def test_the_overall_speed_counts_pauses_and_no_rollback() -> None:
    assert speeds(story_of(document(), (), NOW).points) == [None, 1000.0, 500.0, None, pytest.approx(40_000 / 30)]


def test_a_member_that_went_on_in_place_was_away_before_the_operator_heard_of_it() -> None:
    last = STATUS.failures[-1]
    in_place = last.evolve(time=START + 90, role="shard", index=0, life=1, lost_samples=0, recovery_seconds=0.25)
    for took_s, begin in ((0.25, START + 89.75), (None, START + 90)):
        found = STATUS.evolve(failures=(in_place.evolve(recovery_seconds=took_s),))
        spans = [each for each in story_of(document(found), (), NOW).spans() if each.member == "shard/0"]
        assert spans == [
            Span("shard/0", START, begin, away=False),
            Span("shard/0", begin, START + 90, away=True),
            Span("shard/0", START + 90, NOW, away=False),
        ]
        assert tier(found.failures[0]) == "NothingLost"
