"""What this process is told from outside: rosters and SIGTERM; and whether its main loop still turns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

from cpr_contract.roster import TrainerRoster
from cpr_trainer.errors import TrainerError
from cpr_trainer.runtime import RosterFile
from cpr_trainer.trainer.interrupts import POLL_INTERVAL_S, RosterChanged, Superseded, Terminated
from cpr_trainer.trainer.standstill import PauseDetector

#: The main loop turns many times a second where it waits; only a step's arithmetic and a store call take longer.
_STUCK_S = 120.0


class ControlSignals:
    """The newest roster, and the wish to stop, which SIGTERM brings or a roster.

    A thread follows the roster's file; the main thread calls `poll_roster` in every wait and before every step.
    `on_roster` is called on the main thread with each newer roster of the same group and generation. `listener_alive`
    says whether the other trainers still reach this one.
    """

    def __init__(self, rosters: RosterFile[TrainerRoster], stop: threading.Event) -> None:
        self.stop = stop
        self.on_roster: Callable[[TrainerRoster], None] = lambda _: None
        self.listener_alive: Callable[[], bool] = lambda: True
        self.pause_detector = PauseDetector()
        self._rosters = rosters
        self._newest: TrainerRoster | None = None
        self._failure: TrainerError | None = None
        self._current: TrainerRoster | None = None
        self._heartbeat_at = monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read_rosters, name="roster", daemon=True)

    def start(self) -> None:
        """Begin to follow the roster's file, and to look for standstills."""
        self._thread.start()
        self.pause_detector.start()

    def close(self) -> None:
        """Stop following and looking."""
        self._ended.set()
        self.pause_detector.close()

    def wait_for_roster(self) -> TrainerRoster:
        """Wait for a roster and take it as the current one. Raises Terminated, Superseded, ContractVersionError."""
        while self._newest is None:
            self.heartbeat()
            self._raise_failure()
            if self.stop.wait(POLL_INTERVAL_S):
                raise Terminated("told to stop before the first roster")
        return self.adopt()

    def adopt(self) -> TrainerRoster:
        """Take the newest roster as the current one. Raises Superseded."""
        roster = self._newest
        if roster is None:
            raise ValueError("no roster was read")
        if roster.newest_incarnation > roster.incarnation:
            raise Superseded(f"incarnation {roster.newest_incarnation} of this trainer exists")
        self._current = roster
        return roster

    @property
    def current(self) -> TrainerRoster | None:
        """The roster that was adopted last; any thread may look."""
        return self._current

    @property
    def job_stops(self) -> bool:
        """Whether it is the newest roster that says stop: then it says so to everybody."""
        return self._newest is not None and self._newest.stop

    def poll_roster(self) -> None:
        """Turn once, and follow a newer roster. Raises RosterChanged if it is of another group or generation."""
        self.heartbeat()
        self._raise_failure()
        before = self._current
        if before is None or self._newest is before:
            return
        now = self.adopt()
        if (now.counters.group, now.counters.generation) != (before.counters.group, before.counters.generation):
            raise RosterChanged(f"roster {now.counters.roster}: another group or generation")
        self.on_roster(now)

    def poll_interrupts(self) -> None:
        """Do as `poll_roster`, and raise Terminated if this process is to stop."""
        self.poll_roster()
        if self.stop.is_set():
            raise Terminated("told to stop")

    def heartbeat(self) -> None:
        """Note that the main loop makes progress."""
        self._heartbeat_at = monotonic()

    def healthy(self) -> bool:
        """Whether the main loop turned lately, and the other trainers reach this one."""
        return monotonic() - self._heartbeat_at < _STUCK_S and self.listener_alive()

    def _read_rosters(self) -> None:
        try:
            for roster in self._rosters.watch(self._ended):
                self._newest = roster
                if roster.stop:
                    self.stop.set()
        except TrainerError as error:
            self._failure = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
