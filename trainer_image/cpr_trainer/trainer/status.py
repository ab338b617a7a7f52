"""A trainer's status: the report on `/status`, its figures on `/metrics`, and the progress line in the log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cpr_contract.codec import ContractError, from_json
from cpr_contract.reports import (
    RECORDED_HEADER,
    Problem,
    Recorded,
    RosterNote,
    TrainerReport,
    TrainerState,
)
from cpr_trainer.trainer.control import PollInterrupts

_LOG = logging.getLogger(__name__)

#: Interval between two progress lines.
PROGRESS_S = 60.0
_POLL_S = 0.05
#: States of a ready trainer. A paused one is not ready: the change of readiness makes the operator look at once.
_READY = frozenset({TrainerState.TRAINING, TrainerState.MEETING, TrainerState.FINISHING, TrainerState.FINISHED})

_GAUGES: Mapping[str, tuple[str, str]] = {
    "step": ("cprjob_trainer_step", "Last complete step"),
    "samples": ("cprjob_trainer_samples", "Samples of complete steps"),
    "total_samples": ("cprjob_trainer_job_samples", "Samples of the whole job"),
    "samples_per_s": ("cprjob_trainer_samples_per_second", "Samples a second while training"),
    "loss": ("cprjob_trainer_loss_nats", "Mean log loss of the steps merged last"),
    "auc": ("cprjob_trainer_auc_ratio", "Progressive AUC, the first fifth of the samples left out"),
    "logloss": ("cprjob_trainer_logloss_nats", "Progressive log loss, the first fifth of the samples left out"),
    "sync_gap": ("cprjob_trainer_sync_gap_steps", "Steps between two averages of the dense copies, in a shadow mode"),
    "commit_s": ("cprjob_trainer_commit_seconds", "From the last cut to its commit"),
}
_COUNTERS: Mapping[str, tuple[str, str]] = {
    "saves": ("cprjob_trainer_saves", "Committed cuts"),
    "save_stall_s": ("cprjob_trainer_save_stall_seconds", "Training time lost to saves"),
    "paused_s": ("cprjob_trainer_paused_seconds", "Training time lost to waiting"),
    "degraded_samples": ("cprjob_trainer_degraded_samples", "Samples of steps that were trained without a shard"),
}
_HELD_OUT: Mapping[str, tuple[str, str]] = {
    "auc": ("cprjob_trainer_held_out_auc_ratio", "AUC of the last evaluation on held-out samples"),
    "logloss": ("cprjob_trainer_held_out_logloss_nats", "Its log loss"),
    "normalised_entropy": ("cprjob_trainer_held_out_normalised_entropy_ratio", "Its log loss by that of a constant"),
    "gauc": ("cprjob_trainer_held_out_gauc_ratio", "Its mean AUC of groups, weighted by samples"),
    "calibration": ("cprjob_trainer_held_out_calibration_ratio", "Its mean prediction by the portion of ones"),
    "samples": ("cprjob_trainer_held_out_trained_samples", "Samples that its model was trained on"),
}
_SEGMENT: Mapping[str, tuple[str, str]] = {
    "pin": ("cprjob_trainer_segment_pin", "Number of the last pin in the newest complete segment"),
    "auc": ("cprjob_trainer_segment_auc_ratio", "Progressive AUC of that segment alone"),
    "logloss": ("cprjob_trainer_segment_logloss_nats", "Its log loss"),
    "normalised_entropy": ("cprjob_trainer_segment_normalised_entropy_ratio", "Its log loss by that of a constant"),
    "calibration": ("cprjob_trainer_segment_calibration_ratio", "Its mean prediction by the portion of ones"),
}
_BEST: Mapping[str, tuple[str, str]] = {
    "value": ("cprjob_trainer_best_evaluation", "Best evaluation so far, by the metric of earlyStop"),
    "since": ("cprjob_trainer_evaluations_since_best", "Evaluations since the best one"),
}


class StatusPublisher:
    """Holds the report. The main thread updates it, the threads of the status server read it.

    `fill_in` adds values that are looked up when a report is requested; it must not block. A wait for others that lasts
    longer than `pause_after_s` is a pause. `recorded` is the part of the job's status that the operator returned last.
    """

    def __init__(self, first: TrainerReport) -> None:
        self.fill_in: Callable[[TrainerReport], TrainerReport] = lambda report: report
        self.pause_after_s = 1.0
        self.recorded = Recorded(0, "", 0)
        self._report = first
        self._lasting_problem: Problem | None = None
        self._lock = threading.Lock()
        self._waited_s = 0.0

    def update(self, **fields: Any) -> None:
        """Replace fields of the report."""
        with self._lock:
            self._report = replace(self._report, **fields)

    @property
    def state(self) -> TrainerState:
        """The state reported now."""
        return self._report.state

    @property
    def updated(self) -> TrainerReport:
        """The report as `update` left it."""
        return self._report

    def ready(self) -> bool:
        """Return whether this process trains, or has finished."""
        return self.state in _READY

    def add_lasting_problem(self, problem: Problem) -> None:
        """Log a problem that does not stop training, and report it until the end while there is no other."""
        _LOG.warning("%s %s", problem.message, problem.remedy)
        self._lasting_problem = self._lasting_problem or problem

    def report(self) -> TrainerReport:
        """Return the report as of now; any thread may call it."""
        with self._lock:
            report = self._report
        report = self.fill_in(report)
        return report if report.problem else replace(report, problem=self._lasting_problem)

    def on_recorded(self, recorded: str) -> None:
        """Take in the operator's header about the job's status; any thread may call it."""
        try:
            self.recorded = from_json(Recorded, recorded)
        except ContractError as error:
            _LOG.warning("%s is ignored: %s", RECORDED_HEADER, error)

    def on_roster_note(self, roster: bytes) -> None:
        """Take in the same from the roster's file, which an operator uses that has no key for the header."""
        try:
            recorded = from_json(RosterNote, roster).recorded
        except ContractError as error:
            _LOG.warning("a note in the roster is ignored: %s", error)
        else:
            self.recorded = recorded or self.recorded

    def wait_until_recorded(self, within_s: float) -> None:
        """Wait until the job's status holds the scores by group of the last evaluation, if there are any."""
        evaluation, until = self._report.evaluation, monotonic() + within_s
        if evaluation is None or not evaluation.groups:
            return
        awaited = (self._report.counters.generation, evaluation.step)
        while (self.recorded.generation, self.recorded.evaluation) != awaited:
            if monotonic() > until:
                _LOG.warning("the operator did not record the scores by group within %.0f s", within_s)
                return
            sleep(_POLL_S)

    def take_waited_s(self) -> float:
        """Return the seconds paused since the last call."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Report Paused, and count the time."""
        before, start = self.state, monotonic()
        self.update(state=TrainerState.PAUSED)
        try:
            yield
        finally:
            self._waited_s += monotonic() - start
            self.update(state=before)

    @contextmanager
    def waiting(self, poll_interrupts: PollInterrupts) -> Iterator[PollInterrupts]:
        """Yield the polling function for a wait on others, which becomes a pause when it takes long."""
        before, start = self.state, monotonic()

        def poll_and_report() -> None:
            if self.state is not TrainerState.PAUSED and monotonic() - start > self.pause_after_s:
                self.update(state=TrainerState.PAUSED)
            poll_interrupts()

        try:
            yield poll_and_report
        finally:
            waited_s = monotonic() - start
            if waited_s > self.pause_after_s:
                self._waited_s += waited_s
                self.update(state=before)


class ReportCollector(Collector):
    """The values of a report as Prometheus metrics."""

    def __init__(self, status: StatusPublisher) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield one family for each known value."""
        report = self._status.report()
        for kind, source, families in (
            (GaugeMetricFamily, report, _GAUGES),
            (CounterMetricFamily, report, _COUNTERS),
            (GaugeMetricFamily, report.evaluation, _HELD_OUT),
            (GaugeMetricFamily, report.segment, _SEGMENT),
            (GaugeMetricFamily, report.best, _BEST),
        ):
            for field, (name, text) in families.items():
                value = getattr(source, field, None)
                if value is not None:
                    yield kind(name, text, value=float(value))
        if report.data is not None:
            lag = report.data.lag(report.samples)
            yield GaugeMetricFamily("cprjob_trainer_data_lag_samples", "Pinned samples that are not trained", value=lag)
        of_groups = GaugeMetricFamily(
            "cprjob_trainer_held_out_group_auc_ratio",
            "Its AUC of the largest groups, and of the rest",
            labels=("group",),
        )
        found = report.evaluation
        for group in () if found is None else (*found.groups, *filter(None, (found.rest,))):
            if group.auc is not None:
                of_groups.add_metric((group.name,), group.auc)
        yield of_groups
        own = GaugeMetricFamily("cprjob_trainer_metric", "Other figures of progressive validation", labels=("name",))
        for name, value in report.metrics:
            own.add_metric((name,), value)
        yield own
        states = GaugeMetricFamily("cprjob_trainer_state", "1 for the state it is in", labels=("state",))
        for state in TrainerState:
            states.add_metric((state.value,), float(state is report.state))
        yield states


class ProgressTimer:
    """Schedules the progress line. Times are seconds of one clock; the first line is due a minute after the start."""

    def __init__(self, now: float) -> None:
        self._next_s = now + PROGRESS_S

    def due(self, now: float) -> bool:
        """Return whether a minute has passed since the last line; the next one is then due in a minute."""
        if now < self._next_s:
            return False
        self._next_s = now + PROGRESS_S
        return True


def progress_line(report: TrainerReport) -> str:
    """Return step, samples, speed, loss, AUC and the time left at this speed, without unknown values.

    Until data that arrives has ended, the line has the samples that are pinned and not trained, and no time.
    """
    is_open = report.data is not None and not report.data.ended
    parts = [f"step {report.step:,}"]
    if report.data is not None and is_open:
        parts.append(f"{report.samples:,} samples, {report.data.lag(report.samples):,} to go")
    else:
        parts.append(f"{report.samples:,} of {report.total_samples:,} samples")
    if report.samples_per_s:
        parts.append(f"{report.samples_per_s:,.0f} samples/s")
    if report.loss is not None:
        parts.append(f"loss {report.loss:.4f}")
    if report.auc is not None:
        parts.append(f"AUC {report.auc:.4f}")
    if report.segment is not None and report.segment.auc is not None:
        parts.append(f"AUC {report.segment.auc:.4f} of the segment up to pin {report.segment.pin:,}")
    if report.evaluation is not None and report.evaluation.auc is not None:
        parts.append(f"held-out AUC {report.evaluation.auc:.4f} at step {report.evaluation.step:,}")
    if report.samples_per_s and not is_open:
        left_s = max(report.total_samples - report.samples, 0) / report.samples_per_s
        parts.append(f"ETA {timedelta(seconds=round(left_s))}")
    return ", ".join(parts)
