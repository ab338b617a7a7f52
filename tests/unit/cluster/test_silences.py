from __future__ import annotations

import pytest

from cpr_operator.cluster.pod_reports import FORGET_S, LAST_PAUSE_S, SILENT_POLLS, Silences, pause_s


@pytest.mark.parametrize(
    ("in_a_row", "pods", "seconds"), [(1, 1, 1.0), (2, 1, 2.0), (3, 1, 4.0), (9, 1, LAST_PAUSE_S), (1, 120, 20.0)]
)
def test_the_pause_grows_with_silence_and_with_the_number_of_silent_pods(
    in_a_row: int, pods: int, seconds: float
) -> None:
    assert pause_s(in_a_row, 2.0, pods) == seconds


def test_of_many_silent_pods_each_has_its_turn_and_all_take_a_share_only() -> None:
    now, polls = 0.0, {str(n): 0 for n in range(300)}
    silences = Silences(lambda: now)
    for _ in range(600):  # two seconds each: one poll
        asked = [uid for uid in polls if silences.is_due("job", uid)][: 2 * SILENT_POLLS]
        now += 2.0
        for uid in asked:
            polls[uid] += 1
            silences.was_silent("job", uid, 2.0)
    assert min(polls.values()) >= 20
    assert sum(polls.values()) <= (600 + 30) * SILENT_POLLS  # the first turn of each comes without a pause


def test_jobs_do_not_share_their_silence_and_an_answer_ends_it() -> None:
    silences = Silences(lambda: 0.0)
    silences.was_silent("a", "1", 2.0)
    assert ("a", "1") in silences
    assert ("b", "1") not in silences
    assert (silences.is_due("a", "1"), silences.is_due("b", "1")) == (False, True)
    silences.answered("a", "1")
    silences.answered("b", "1")
    assert silences.is_due("a", "1")


def test_pods_that_nobody_asks_any_more_are_forgotten() -> None:
    now = 0.0
    silences = Silences(lambda: now)
    silences.was_silent("a", "1", 2.0)
    now = FORGET_S
    silences.was_silent("b", "1", 2.0)
    assert ("a", "1") not in silences
    assert ("b", "1") in silences
