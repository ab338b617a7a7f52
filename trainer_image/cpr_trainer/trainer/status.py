"""What a trainer says about itself: the report on `/status`, and its figures on `/metrics`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic, sleep
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cpr_contract.codec import ContractError, from_json
from cpr_contract.reports import (
    RECORDED_HEADER,
    BestEvaluation,
    HeldOutScores,
    Problem,
    Recorded,
    RosterNote,
    TrainerReport,
    TrainerState,
)
from cpr_contract.roster import AnchorRef
from cpr_trainer.trainer.interrupts import PollInterrupts

_LOG = logging.getLogger(__name__)

_CHECK_INTERVAL_S = 0.05


class StatusPublisher:
    """Holds the report. The main thread changes it; the status page's threads read it.

    `fill_in` fills in what is looked up at the moment of a report; it must not block. A wait for others that lasts
    longer than `pause_after_s` is a pause. `recorded` is what the operator said last that the job's status holds.
    `lasting_problem` is a problem that lasts as long as the process and keeps nothing from training: it is reported
    while there is no other.
    """

    def __init__(self, first: TrainerReport, lasting_problem: Problem | None = None) -> None:
        self.fill_in: Callable[[TrainerReport], TrainerReport] = lambda report: report
        self.pause_after_s = 1.0
        self.recorded = Recorded(0, "", 0)
        self._report = first
        self._lasting_problem = lasting_problem
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
    def met(self) -> AnchorRef | None:
        """The anchor at which all trainers stand, as reported now."""
        return self._report.met

    @property
    def evaluation(self) -> HeldOutScores | None:
        """The last evaluation on held-out samples, as reported now."""
        return self._report.evaluation

    @property
    def best(self) -> BestEvaluation | None:
        """The best evaluation, as reported now."""
        return self._report.best

    def add_lasting_problem(self, problem: Problem) -> None:
        """Log a problem that lasts as long as the process, and report it unless there is such a one already."""
        _LOG.warning("%s %s", problem.message, problem.remedy)
        self._lasting_problem = self._lasting_problem or problem

    def report(self) -> TrainerReport:
        """Return the report as of now; any thread may call it."""
        with self._lock:
            report = self._report
        report = self.fill_in(report)
        return report if report.problem else replace(report, problem=self._lasting_problem)

    def on_recorded(self, recorded: str) -> None:
        """Take in what the operator says that the job's status holds; any thread may call it."""
        try:
            self.recorded = from_json(Recorded, recorded)
        except ContractError as error:
            _LOG.warning("%s is ignored: %s", RECORDED_HEADER, error)

    def on_roster_note(self, roster: bytes) -> None:
        """Take in the same from the file of the roster, where an operator writes it that has no key for a header."""
        try:
            recorded = from_json(RosterNote, roster).recorded
        except ContractError as error:
            _LOG.warning("a note in the roster is ignored: %s", error)
        else:
            self.recorded = recorded or self.recorded

    def wait_until_recorded(self, within_s: float) -> None:
        """Wait until the job's status holds the scores by group of the last evaluation, if there are any."""
        evaluation, until = self.evaluation, monotonic() + within_s
        if evaluation is None or not evaluation.groups:
            return
        wanted = (self._report.counters.generation, evaluation.step)
        while (self.recorded.generation, self.recorded.evaluation) != wanted:
            if monotonic() > until:
                _LOG.warning("the operator did not record the scores by group within %.0f s", within_s)
                return
            sleep(_CHECK_INTERVAL_S)

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
        """Give an `poll_interrupts` for a wait on others that turns into a pause when it takes long."""
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


_BEST: Mapping[str, tuple[str, str]] = {
    "value": ("cprjob_trainer_best_evaluation", "What the best evaluation scored by the metric of earlyStop"),
    "since": ("cprjob_trainer_evaluations_since_best", "Evaluations since the best one"),
}


class ReportCollector(Collector):
    """The report's figures as Prometheus metrics."""

    def __init__(self, status: StatusPublisher) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield one family for each figure that is known."""
        report = self._status.report()
        for kind, families in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for field, (name, text) in families.items():
                value = getattr(report, field)
                if value is not None:
                    yield kind(name, text, value=float(value))
        for field, (name, text) in _HELD_OUT.items():
            value = getattr(report.evaluation, field, None)
            if value is not None:
                yield GaugeMetricFamily(name, text, value=float(value))
        yield _by_group(report)
        for field, (name, text) in _BEST.items():
            value = getattr(report.best, field, None)
            if value is not None:
                yield GaugeMetricFamily(name, text, value=float(value))
        own = GaugeMetricFamily("cprjob_trainer_metric", "Other figures of progressive validation", labels=("name",))
        for name, value in report.metrics:
            own.add_metric((name,), value)
        yield own
        states = GaugeMetricFamily("cprjob_trainer_state", "1 for the state it is in", labels=("state",))
        for state in TrainerState:
            states.add_metric((state.value,), float(state is report.state))
        yield states


def _by_group(report: TrainerReport) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "cprjob_trainer_held_out_group_auc_ratio", "Its AUC of the largest groups, and of the rest", labels=("group",)
    )
    found = report.evaluation
    for group in () if found is None else (*found.groups, *filter(None, (found.rest,))):
        if group.auc is not None:
            family.add_metric((group.name,), group.auc)
    return family
