"""A process that was stopped and goes on notices that it did not run."""

from cpr_trainer.trainer.standstill import Standstill


def test_a_late_turn_is_a_standstill_and_a_punctual_one_is_none() -> None:
    times = iter((0.0, 0.05, 0.5, 0.55, 10.6, 10.65, 10.7))  # a loaded machine, and ten seconds of standstill
    standstill = Standstill(lambda: next(times))
    for _ in range(2):
        standstill.turn()
    assert standstill.take_s() == 0.0
    standstill.turn()
    assert round(standstill.take_s(), 6) == 10.0
    assert standstill.take_s() == 0.0
