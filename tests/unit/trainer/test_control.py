"""A process that was stopped for a while detects the pause; one that starts while its job stops takes the roster."""

import threading
from dataclasses import replace
from pathlib import Path

from cpr_contract.roster import TrainerRoster
from cpr_trainer.runtime import RosterFile
from cpr_trainer.trainer.control import ControlSignals, PauseDetector
from support.shard_job import trainer_roster


def test_late_tick_is_a_pause_and_a_punctual_one_is_not() -> None:
    times = iter((0.0, 0.05, 0.5, 0.55, 10.6, 10.65, 10.7))  # a loaded machine, and a pause of ten seconds
    pause_detector = PauseDetector(lambda: next(times))
    for _ in range(2):
        pause_detector.tick()
    assert pause_detector.take_paused_s() == 0.0
    pause_detector.tick()
    assert round(pause_detector.take_paused_s(), 6) == 10.0
    assert pause_detector.take_paused_s() == 0.0


def test_first_roster_is_taken_although_it_stops_the_job() -> None:
    """The process before this one may have left a state and pushes, which are to be saved."""
    stops = replace(trainer_roster(()), stop=True)

    class StoppedByRoster(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            del timeout
            control._newest = stops
            self.set()
            return True

    control = ControlSignals(RosterFile(Path("unused"), TrainerRoster), StoppedByRoster())
    assert control.wait_for_roster() == stops
