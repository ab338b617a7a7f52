"""Signals from outside that end a wait: a newer roster, SIGTERM; and checks that the process makes progress.

Every wait of the main thread polls `ControlSignals` once per interval. `PauseDetector` measures how long the whole
process was stopped, by a signal or with its machine suspended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

from cpr_contract.roster import TrainerRoster
from cpr_trainer.errors import TrainerError
from cpr_trainer.runtime import RosterFile

#: Polls for what ends a wait, between the intervals of the wait: keeps the process healthy, follows rosters, and raises
#: an `Interruption`.
PollInterrupts = Callable[[], None]

#: Interval between two polls: the delay with which a wait reacts.
POLL_INTERVAL_S = 0.05
#: The main loop polls many times a second while it waits; only the arithmetic of a step and a store call take longer.
_STUCK_S = 120.0
_TICK_S = 0.05
#: A thread that is this late did not run; a busy machine does not delay it as much.
_LATE_S = 1.0


class Interruption(Exception):  # noqa: N818 -- control flow, no errors: the loop catches each by name
    """Base of the exceptions that end a wait. They are no TrainerError."""


class RosterChanged(Interruption):
    """The newest roster has another group or generation: leave the present one."""


class Terminated(Interruption):
    """SIGTERM, or a roster with `stop`: save and end."""


class Superseded(Interruption):
    """A newer incarnation of this trainer exists: end."""


class GroupBroken(Interruption):
    """A member of the group is gone or hangs: join again. The message has the member and the cause."""


class Finished(Interruption):
    """The leader has committed the final anchor."""


class PauseDetector:
    """A thread that wakes up often, and is late after the process was stopped. `on_tick` is called on the thread."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.on_tick: Callable[[], None] = lambda: None
        self._clock = clock
        self._ticked = clock()
        self._late_s = 0.0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pause-detector", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._ended.set()

    def tick(self) -> None:
        """Compare the time with the last tick; any thread may."""
        with self._lock:
            now = self._clock()
            late_s = now - self._ticked - _TICK_S
            self._ticked = now
            if late_s > _LATE_S:
                self._late_s += late_s

    def take_paused_s(self) -> float:
        """Return the seconds that the process was stopped since the last call."""
        self.tick()
        with self._lock:
            late_s, self._late_s = self._late_s, 0.0
        return late_s

    def _run(self) -> None:
        while not self._ended.wait(_TICK_S):
            self.tick()
            self.on_tick()


class ControlSignals:
    """The newest roster, and the request to stop, from SIGTERM or a roster.

    A thread reads the roster's file. The main thread calls `poll_interrupts` in every wait and before every step.
    `on_roster` is called on the main thread with each newer roster of the same group and generation. `listener_alive`
    returns whether other trainers can reach this one. `current` is the roster that was adopted last; any thread may
    read it.
    """

    def __init__(self, rosters: RosterFile[TrainerRoster], stop: threading.Event) -> None:
        self.stop = stop
        self.on_roster: Callable[[TrainerRoster], None] = lambda _: None
        self.listener_alive: Callable[[], bool] = lambda: True
        self.pause_detector = PauseDetector()
        self._rosters = rosters
        self._newest: TrainerRoster | None = None
        self._failure: TrainerError | None = None
        self.current: TrainerRoster | None = None
        self._heartbeat_at = monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read_rosters, name="roster", daemon=True)

    def start(self) -> None:
        """Start to read the roster's file, and to detect pauses."""
        self._thread.start()
        self.pause_detector.start()

    def close(self) -> None:
        """End the threads."""
        self._ended.set()
        self.pause_detector.close()

    def wait_for_roster(self) -> TrainerRoster:
        """Wait for a first roster and adopt it, even if it stops the job: the last process may have left pushes.

        Raises Terminated after SIGTERM without a roster, Superseded, ContractVersionError.
        """
        while self._newest is None:
            self.heartbeat()
            self._raise_failure()
            if self.stop.wait(POLL_INTERVAL_S) and self._newest is None:
                raise Terminated("stopped before the first roster")
        return self.adopt()

    def adopt(self) -> TrainerRoster:
        """Take the newest roster as the current one. Raises Superseded."""
        roster = self._newest
        if roster is None:
            raise ValueError("no roster was read")
        if roster.newest_incarnation > roster.incarnation:
            raise Superseded(f"incarnation {roster.newest_incarnation} of this trainer exists")
        self.current = roster
        return roster

    @property
    def job_stops(self) -> bool:
        """True if the newest roster stops the job: all members stop, not this process alone."""
        return self._newest is not None and self._newest.stop

    def poll_roster(self) -> None:
        """Follow a newer roster. Raises RosterChanged if it is of another group or generation."""
        self.heartbeat()
        self._raise_failure()
        before = self.current
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
            raise Terminated("stopped")

    def heartbeat(self) -> None:
        """Record that the main loop makes progress."""
        self._heartbeat_at = monotonic()

    def healthy(self) -> bool:
        """Return whether the main loop has polled lately, and other trainers can reach this one."""
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
