"""The cost of saves is separated from slow steps and from pauses."""

import random

import pytest

from cpr_trainer.trainer.pace import Pace, SaveCost


def warmed_up(step_s: float = 1.0, steps: int = 20) -> Pace:
    pace = Pace()
    for _ in range(3):
        pace.note(9.0, 0.0, saving=False)  # the first steps of a process are slow
    for _ in range(steps):
        pace.note(step_s, 0.0, saving=False)
    return pace


def test_pauses_are_no_training_time() -> None:
    pace = Pace()
    pace.note(1.0, 0.0, saving=False)
    pace.note(5.0, 4.0, saving=False)
    pace.note(2.0, 3.0, saving=False)  # waited from before the step on

    assert (pace.trained_s, pace.paused_s) == (2.0, 6.0)


def test_usual_step_has_neither_a_save_nor_a_pause() -> None:
    pace = warmed_up()
    pace.note(3.0, 0.0, saving=True)
    pace.note(3.0, 2.5, saving=False)
    assert pace.usual_step_s == 1.0


def test_save_delays_by_its_stall_and_by_slower_steps() -> None:
    pace, cost = warmed_up(), SaveCost()
    for step_s in (2.0, 1.25, 1.25):
        cost.note(pace.note(step_s, 0.0, saving=True))
    cost.note(pace.note(1.75, 0.0, saving=False))  # slow, but nothing is saved
    assert cost.stalled_s == pytest.approx(1.5)


def test_pause_during_a_save_is_no_cost_of_the_save() -> None:
    pace, cost = warmed_up(), SaveCost()
    cost.note(pace.note(1.5, 0.0, saving=True))
    cost.note(pace.note(31.5, 30.0, saving=True))
    assert cost.stalled_s == pytest.approx(0.5)


def test_save_has_no_cost_before_the_first_usual_step() -> None:
    pace = Pace()
    assert [pace.note(1.0, 0.0, saving=True) for _ in range(10)] == [0.0] * 10
    assert pace.usual_step_s is None


def test_varying_steps_do_not_add_up_to_a_cost() -> None:
    """Half of 2000 steps run while something is saved, and none of them is slower for it."""
    rng, pace, cost = random.Random(7), Pace(), SaveCost()
    trained_s = 0.0
    for step in range(2000):
        step_s = rng.expovariate(1.0)  # as skewed as steps get
        trained_s += step_s
        cost.note(pace.note(step_s, 0.0, saving=step % 20 >= 10))
    assert cost.stalled_s < 0.1 * trained_s / 2


def test_cost_of_saves_is_a_counter() -> None:
    cost, seen = SaveCost(), [0.0]
    for delay_s in (0.5, -0.2, 0.1, 0.3, -1.0):
        cost.note(delay_s)
        seen.append(cost.stalled_s)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(0.7)


def test_pause_limit_grows_with_the_steps_and_not_with_a_single_one() -> None:
    pace = Pace()
    assert pace.pause_after_s == 1.0
    for _ in range(9):
        pace.note(4.0, 0.0, saving=False)
    pace.note(500.0, 0.0, saving=False)
    assert pace.pause_after_s == 20.0
