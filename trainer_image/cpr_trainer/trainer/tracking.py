"""The thread that hands the leader's figures to trackers, so that training never waits for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from time import monotonic

from cpr_contract.reports import TrainerReport
from cpr_trainer.trainer.trackers import Tracker

_LOG = logging.getLogger(__name__)

EVERY_S = 10.0
#: So soon it is seen that all samples are trained. Once the final anchor is committed, pods may be ended at once.
POLL_S = 0.2
#: At the end of the process, trackers have so long for the last figures. A grace period is 30 s at least.
LAST_S = 10.0


class Tracking:
    """Logs the report to all trackers every ten seconds, and once all samples are trained, if this process leads.

    Followers open no tracker. One that fails is tried again with the next figures.
    """

    def __init__(
        self,
        makers: tuple[Callable[[], Tracker], ...],
        report: Callable[[], TrainerReport],
        leads: Callable[[], bool],
    ) -> None:
        self._makers = makers
        self._report = report
        self._leads = leads
        self._opened: dict[int, Tracker] = {}
        self._samples = 0
        self._next_s = 0.0
        self._failing: set[int] = set()

    def tell(self, now: float) -> None:
        """Log what is new, if it is due. now: in seconds of a clock that is never set."""
        if not self._leads():
            return
        if self._next_s == 0.0:
            self._next_s = now + EVERY_S
            self._each(lambda _: None)  # opened before it is needed: packages take seconds to load
        report = self._report()
        if now >= self._next_s or report.samples == report.total_samples:
            self._next_s = now + EVERY_S
            self._log(report)

    def _log(self, report: TrainerReport) -> None:
        if report.samples in {0, self._samples}:
            return
        self._samples, figures = report.samples, metrics_of(report)
        self._each(lambda tracker: tracker.log(report.samples, figures))

    def close(self) -> None:
        """Log what is left, and close all trackers."""
        if self._leads():
            report = self._report()
            self._log(report)
            self._each(lambda tracker: tracker.close(finished=report.result is not None))

    def _each(self, act: Callable[[Tracker], None]) -> None:
        """Do it to all trackers; a failure is logged where it begins, and ends nothing."""
        for number, make in enumerate(self._makers):
            try:
                if number not in self._opened:
                    self._opened[number] = make()
                act(self._opened[number])
            except Exception:  # noqa: BLE001 -- packages of others raise anything
                if number not in self._failing:
                    _LOG.warning("a tracker takes no figures; training goes on without it", exc_info=True)
                self._failing.add(number)
            else:
                self._failing.discard(number)


def metrics_of(report: TrainerReport) -> Mapping[str, float]:
    """The figures of a report by name; those that are not known are left out."""
    known = {
        "loss": report.loss,
        "auc": report.auc,
        "logloss": report.logloss,
        "samples_per_second": report.samples_per_s,
        **dict(report.metrics),
        "saves": report.saves,
        "save_stall_seconds": report.save_stall_s,
        "paused_seconds": report.paused_s,
        "degraded_samples": report.degraded_samples,
    }
    return {name: float(value) for name, value in known.items() if value is not None and isfinite(value)}


@contextmanager
def tracking(
    makers: tuple[Callable[[], Tracker], ...],
    report: Callable[[], TrainerReport],
    leads: Callable[[], bool],
) -> Iterator[None]:
    """Track while the context lasts. A tracker that hangs at its end is left behind."""
    if not makers:
        yield
        return
    tracked, ended = Tracking(makers, report, leads), threading.Event()

    def work() -> None:
        while not ended.wait(POLL_S):
            tracked.tell(monotonic())
        tracked.close()

    thread = threading.Thread(target=work, name="tracking", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LAST_S)
