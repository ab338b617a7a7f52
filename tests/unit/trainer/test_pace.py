import pytest

from cpr_trainer.trainer.pace import Pace


def test_pauses_are_no_training_time() -> None:
    pace = Pace()
    pace.note(1.0, 0.0, cut=False)
    pace.note(5.0, 4.0, cut=False)

    assert (pace.trained_s, pace.paused_s, pace.stalled_s) == (2.0, 4.0, 0.0)


def test_what_steps_after_a_cut_take_too_long_is_the_cost_of_saving() -> None:
    pace = Pace()
    for cut in (False, False, True):
        pace.note(1.0, 0.0, cut=cut)
    for step_s in (1.5, 1.0, 1.25):
        pace.note(step_s, 0.0, cut=False)
    pace.note(9.0, 0.0, cut=False)  # too late to be the cut's doing

    assert pace.stalled_s == pytest.approx(0.75)
    assert pace.usual_step_s == pytest.approx(1.0 + 0.05 * 8.0)
