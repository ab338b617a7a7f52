from hypothesis import given
from hypothesis import strategies as st

from cpr_trainer.trainer.save_coordinator import LEAD_STEPS, CutSchedule


def _run(
    schedule: CutSchedule, steps: range, *, interval_s: float, step_s: float = 1.0, commit_steps: int = 1
) -> list[int]:
    """Train steps of one second each; a cut is committed some steps later. Return the cuts announced, in order."""
    cuts: list[int] = []
    for step in steps:
        uncommitted = bool(cuts) and cuts[-1] < step <= cuts[-1] + commit_steps
        cut = schedule.announce(step, step * step_s, interval_s, uncommitted=uncommitted)
        if cut and (not cuts or cuts[-1] != cut):
            assert cut >= step + LEAD_STEPS or cut == 100, "announced early enough"
            cuts.append(cut)
    return cuts


def test_cuts_come_every_interval_and_at_the_end() -> None:
    assert _run(CutSchedule(lambda _: 100), range(1, 101), interval_s=30) == [34, 64, 94, 100]


def test_a_new_interval_counts_from_the_last_cut() -> None:
    schedule = CutSchedule(lambda _: 1000)

    def interval_s(step: int) -> float:
        return 30.0 if step < 40 else 10.0 if step < 80 else 25.0

    carried = [schedule.announce(step, float(step), interval_s(step), uncommitted=False) for step in range(1, 130)]
    assert list(dict.fromkeys(carried)) == [0, 34, 44, 54, 64, 74, 99, 124]


def test_urgent_cut_before_its_interval_is_logged_with_its_age() -> None:
    schedule = CutSchedule(lambda _: 1000)
    for step in range(1, 21):
        schedule.announce(step, float(step), 10.0, uncommitted=False, urgent=step == 16)
        assert schedule.early_s == (5.0 if step >= 16 else None)
    assert schedule.announce(26, 26.0, 10.0, uncommitted=False, urgent=True) == 29
    assert schedule.early_s is None, "it was due"


def test_no_cut_while_one_is_uncommitted() -> None:
    assert _run(CutSchedule(lambda _: 100), range(1, 101), interval_s=10, commit_steps=35) == [14, 53, 92, 100]


def test_a_void_cut_is_made_up_for_at_once() -> None:
    schedule = CutSchedule(lambda _: 100)
    assert _run(schedule, range(1, 35), interval_s=30) == [34]
    schedule.void()

    assert schedule.announce(36, 36.0, 30, uncommitted=False) == 39


def test_each_stop_is_a_cut_and_nothing_is_cut_close_before_it() -> None:
    def next_stop(step: int) -> int:
        return (step // 40 + 1) * 40

    cuts = _run(CutSchedule(next_stop), range(1, 101), interval_s=15)
    assert cuts == [19, 34, 40, 53, 68, 80, 93]


@given(
    last=st.integers(1, 200), interval_s=st.floats(0, 50), commit_steps=st.integers(0, 60), start=st.integers(1, 200)
)
def test_every_step_carries_the_next_cut(last: int, interval_s: float, commit_steps: int, start: int) -> None:
    schedule, cuts = CutSchedule(lambda _: last), list[int]()
    for step in range(start, last + 1):
        uncommitted = bool(cuts) and cuts[-1] < step <= cuts[-1] + commit_steps
        cut = schedule.announce(step, float(step), interval_s, uncommitted=uncommitted)
        if cut > (cuts[-1] if cuts else 0):
            cuts.append(cut)
            assert cut - step >= LEAD_STEPS or cut == last
    if start <= last:
        assert cuts[-1] == last


def test_a_hastened_cut_comes_at_once_and_alone() -> None:
    schedule = CutSchedule(lambda _: 1000)
    assert schedule.announce(1, 0.0, 60.0, uncommitted=False) == 0
    schedule.hasten()
    assert schedule.announce(2, 0.1, 60.0, uncommitted=True) == 0, "one after the other"
    cut = schedule.announce(3, 0.2, 60.0, uncommitted=False)
    assert cut == 3 + LEAD_STEPS
    assert schedule.announce(cut + 1, 0.3, 60.0, uncommitted=False) == cut, "the next comes at its time"


def test_memory_that_is_short_while_a_cut_is_written_brings_one_cut() -> None:
    schedule = CutSchedule(lambda _: 1000)
    cut = schedule.announce(1, 0.0, 60.0, uncommitted=False, urgent=True)
    assert cut == 1 + LEAD_STEPS
    for step in range(2, 9):
        assert schedule.announce(step, 0.1, 60.0, uncommitted=step > cut, urgent=True) == cut
    assert schedule.announce(9, 0.2, 60.0, uncommitted=False) == cut, "the save has freed memory"
    assert schedule.announce(10, 0.3, 60.0, uncommitted=False, urgent=True) == 10 + LEAD_STEPS
