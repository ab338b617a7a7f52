"""A process that was stopped for a while detects the pause."""

from cpr_trainer.trainer.control import PauseDetector


def test_late_tick_is_a_pause_and_a_punctual_one_is_not() -> None:
    times = iter((0.0, 0.05, 0.5, 0.55, 10.6, 10.65, 10.7))  # a loaded machine, and a pause of ten seconds
    pause_detector = PauseDetector(lambda: next(times))
    for _ in range(2):
        pause_detector.tick()
    assert pause_detector.take_paused_s() == 0.0
    pause_detector.tick()
    assert round(pause_detector.take_paused_s(), 6) == 10.0
    assert pause_detector.take_paused_s() == 0.0
